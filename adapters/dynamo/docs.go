package dynamo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/psych"
)

func docPart(tenant string, d psych.Digest) string { return "d#" + tenant + "#" + hexDigest(d) }

// partBytes is what a part of a document holds; what is left of an item is more
// than its keys and names need.
const partBytes = maxItem - 1024

// docKey is the sort key of the nth part.
func docKey(n int) string { return logKey(uint64(n) + 1)[1:] }

// PutDoc implements [psych.Docs].
func (s *Store) PutDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	if err := s.putDoc(ctx, tenant, d, data); err != nil {
		return fmt.Errorf("dynamo: put doc %q/%s: %w", tenant, d, err)
	}
	return nil
}

func (s *Store) putDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	if err := s.checkTenant(ctx, tenant); err != nil {
		return err
	}
	if sum := psych.Digest(sha256.Sum256(data)); sum != d {
		return fmt.Errorf("the data has digest %s: %w", sum, psych.ErrInvalid)
	}
	// Mostly it is there: looking costs a fraction of writing it again. A read
	// that may lag is good enough to find it.
	part, projection := docPart(tenant, d), "n"
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: keyOf(part, docKey(0)), ProjectionExpression: &projection})
	if err != nil {
		return s.classify(ctx, err)
	}
	if out.Item["n"] != nil {
		return nil
	}
	first := keyOf(part, docKey(0))
	first["v"] = num(formatVersion)
	first["n"] = num(1)
	setData(first, data)
	attribute, bytes := "d", data
	if z := getBin(first, "z"); z != nil {
		attribute, bytes = "z", z
	}
	chunks := slices.Collect(slices.Chunk(bytes, partBytes))
	if len(chunks) == 0 {
		chunks = [][]byte{{}}
	}
	// The first part says that the others are there, so that it comes last.
	for n, chunk := range slices.Backward(chunks) {
		it := keyOf(part, docKey(n))
		it["v"] = num(formatVersion)
		it[attribute] = bin(chunk)
		if n == 0 {
			it["n"] = num(int64(len(chunks)))
		}
		if _, err := s.put(ctx, it, "", nil); err != nil {
			return err
		}
	}
	return nil
}

// GetDoc implements [psych.Docs].
func (s *Store) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	data, err := s.getDoc(ctx, tenant, d)
	if err != nil {
		return nil, fmt.Errorf("dynamo: get doc %q/%s: %w", tenant, d, err)
	}
	return data, nil
}

func (s *Store) getDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	if err := s.checkTenant(ctx, tenant); err != nil {
		return nil, err
	}
	var bytes []byte
	compressed, parts, want := false, int64(0), int64(0)
	err := s.query(ctx, query{part: docPart(tenant, d), from: docKey(0), to: "z"}, func(page []item, _ bool) (bool, error) {
		for _, it := range page {
			if what := newer(it); what != "" {
				return false, fmt.Errorf("it was written by a newer release (%s): upgrade this worker", what)
			}
			if parts == 0 {
				if want, _ = getNum(it, "n"); want == 0 {
					return false, nil // the first part is missing
				}
				compressed = it["z"] != nil
			}
			bytes = append(append(bytes, getBin(it, "d")...), getBin(it, "z")...)
			parts++
		}
		return true, nil
	})
	switch {
	case err != nil:
		return nil, err
	case want == 0:
		return nil, psych.ErrNotFound
	case compressed:
		if bytes, err = decompress(bytes); err != nil {
			return nil, fmt.Errorf("%d of %d parts can't be decompressed: %w", parts, want, err)
		}
	}
	if sha256.Sum256(bytes) != d {
		return nil, errors.New("its " + strconv.FormatInt(parts, 10) + " parts, of " + strconv.FormatInt(want, 10) + ", are not what was put")
	}
	return bytes, nil
}
