package dynamo

import (
	"encoding/hex"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/klauspost/compress/zstd"
)

// formatVersion is the attribute v of every item that this release writes.
const formatVersion = 1

type item = map[string]types.AttributeValue

func keyOf(part, sort string) item { return item{pk: str(part), sk: str(sort)} }

// str is a string: as bytes where it is not UTF-8, which a string attribute must
// be.
func str(s string) types.AttributeValue {
	if !utf8.ValidString(s) {
		return bin([]byte(s))
	}
	return &types.AttributeValueMemberS{Value: s}
}

func bin(b []byte) types.AttributeValue { return &types.AttributeValueMemberB{Value: b} }

func num(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// getStr, getBin and getNum read an attribute that may be absent.

func getStr(it item, name string) string {
	switch a := it[name].(type) {
	case *types.AttributeValueMemberS:
		return a.Value
	case *types.AttributeValueMemberB:
		return string(a.Value)
	}
	return ""
}

func getBin(it item, name string) []byte {
	if a, ok := it[name].(*types.AttributeValueMemberB); ok {
		return a.Value
	}
	return nil
}

func getNum(it item, name string) (int64, bool) {
	if a, ok := it[name].(*types.AttributeValueMemberN); ok {
		n, err := strconv.ParseInt(a.Value, 10, 64)
		return n, err == nil
	}
	return 0, false
}

// newer says which format an item has that this release can't read, or "".
func newer(it item) string {
	if v, ok := getNum(it, "v"); !ok || v != formatVersion {
		return "item format " + strconv.FormatInt(v, 10)
	}
	return ""
}

// size is what DynamoDB counts of an item: names and values, a number as half
// its digits.
func size(it item) int {
	n := 0
	for name, a := range it {
		n += len(name)
		switch a := a.(type) {
		case *types.AttributeValueMemberS:
			n += len(a.Value)
		case *types.AttributeValueMemberB:
			n += len(a.Value)
		case *types.AttributeValueMemberN:
			n += len(a.Value)/2 + 2
		}
	}
	return n
}

const (
	// maxItem is the largest item that is written: 400 KB, less what an
	// emulator has less (moto: 405,000 bytes).
	maxItem = 405_000
	// unit is what one write unit writes.
	unit = 1024
)

func units(n int) int { return (n + unit - 1) / unit }

// setData puts data into an item as d, or compressed as z where that saves a
// write unit.
func setData(it item, data []byte) {
	if len(data) == 0 {
		return
	}
	it["d"] = bin(data)
	raw := size(it)
	if raw <= unit {
		return
	}
	z := compress(data)
	if units(raw-len(data)+len(z)) < units(raw) {
		delete(it, "d")
		it["z"] = bin(z)
	}
}

// getData is the inverse of setData. What it returns is the caller's.
func getData(it item) ([]byte, error) {
	if z := getBin(it, "z"); z != nil {
		return decompress(z)
	}
	return getBin(it, "d"), nil
}

var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithWindowSize(1<<20), zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // the options above are wrong
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			panic(err)
		}
		return d
	})
)

func compress(data []byte) []byte { return encoder().EncodeAll(data, nil) }

func decompress(z []byte) ([]byte, error) { return decoder().DecodeAll(z, nil) }

func hexDigest(d [32]byte) string { return hex.EncodeToString(d[:]) }
