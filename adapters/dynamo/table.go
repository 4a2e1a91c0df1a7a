package dynamo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// TTLAttribute is what a table's TTL is set on: tombstones alone have it.
const TTLAttribute = "e"

// Table is the definition of a table: keys, indexes, billing on demand. A
// template that creates one says the same, and sets TTL on [TTLAttribute] and
// point-in-time recovery, which are calls of their own.
func Table(name string) *dynamodb.CreateTableInput {
	index := func(name, hash, sort string) types.GlobalSecondaryIndex {
		return types.GlobalSecondaryIndex{
			IndexName:  &name,
			KeySchema:  keySchema(hash, sort),
			Projection: &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly},
		}
	}
	attribute := func(name string, t types.ScalarAttributeType) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: &name, AttributeType: t}
	}
	return &dynamodb.CreateTableInput{
		TableName:   &name,
		BillingMode: types.BillingModePayPerRequest,
		KeySchema:   keySchema(pk, sk),
		AttributeDefinitions: []types.AttributeDefinition{
			attribute(pk, types.ScalarAttributeTypeS),
			attribute(sk, types.ScalarAttributeTypeS),
			attribute("g", types.ScalarAttributeTypeS),
			attribute("u", types.ScalarAttributeTypeN),
			attribute("o", types.ScalarAttributeTypeS),
			attribute("c", types.ScalarAttributeTypeN),
		},
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{index(dueIndex, "g", "u"), index(runsIndex, "o", "c")},
	}
}

func keySchema(hash, sort string) []types.KeySchemaElement {
	return []types.KeySchemaElement{
		{AttributeName: &hash, KeyType: types.KeyTypeHash},
		{AttributeName: &sort, KeyType: types.KeyTypeRange},
	}
}

// Init creates the table, as [Table] has it, with TTL and point-in-time
// recovery where the endpoint has them; notes say what was refused. A table that
// is there already is left as it is, but for those two; if its keys or indexes
// are others, that is an error which says so.
func (s *Store) Init(ctx context.Context) (notes []string, err error) {
	if notes, err = s.init(ctx); err != nil {
		return notes, fmt.Errorf("dynamo: init table %.200q: %w", s.table, err)
	}
	return notes, nil
}

func (s *Store) init(ctx context.Context) (notes []string, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	var exists *types.ResourceInUseException
	if _, err := s.client.CreateTable(ctx, Table(s.table)); err != nil && !errors.As(err, &exists) {
		return nil, s.classify(ctx, err)
	}
	is, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	if problems := differences(is, Table(s.table)); problems != nil {
		return nil, fmt.Errorf("it is there, and is not Psych's: %s: name another table", strings.Join(problems, "; "))
	}
	if err := s.setTTL(ctx); err != nil {
		if s.outOfReach(ctx, err) {
			return nil, s.classify(ctx, err)
		}
		notes = append(notes, fmt.Sprintf("TTL on attribute %s was refused (%v): tombstones of deleted Runs stay", TTLAttribute, err))
	}
	if err := s.setRecovery(ctx); err != nil {
		if s.outOfReach(ctx, err) {
			return notes, s.classify(ctx, err)
		}
		notes = append(notes, fmt.Sprintf("point-in-time recovery was refused (%v): back the table up otherwise", err))
	}
	return notes, nil
}

// outOfReach tells an endpoint that did not answer from one that refused.
func (s *Store) outOfReach(ctx context.Context, err error) bool {
	var api smithy.APIError
	return ctx.Err() != nil || !errors.As(err, &api) || retryable.IsErrorRetryable(err).Bool()
}

// active waits until table and indexes are.
func (s *Store) active(ctx context.Context) (*types.TableDescription, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		out, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.table})
		if err != nil {
			return nil, s.classify(ctx, err)
		}
		t := out.Table
		// An endpoint that says nothing of an index' state has it ready.
		building := slices.ContainsFunc(t.GlobalSecondaryIndexes, func(i types.GlobalSecondaryIndexDescription) bool {
			return i.IndexStatus != "" && i.IndexStatus != types.IndexStatusActive
		})
		if t.TableStatus == types.TableStatusActive && !building {
			return t, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fmt.Errorf("the table is %s: %w", t.TableStatus, ctx.Err())
		}
	}
}

// differences says what of a table is not as want has it.
func differences(is *types.TableDescription, want *dynamodb.CreateTableInput) []string {
	kinds := make(map[string]types.ScalarAttributeType)
	for _, a := range is.AttributeDefinitions {
		kinds[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	wanted := make(map[string]types.ScalarAttributeType)
	for _, a := range want.AttributeDefinitions {
		wanted[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	schema := func(keys []types.KeySchemaElement, kinds map[string]types.ScalarAttributeType) string {
		var parts []string
		for _, k := range keys {
			name := aws.ToString(k.AttributeName)
			parts = append(parts, fmt.Sprintf("%s %s %s", name, kinds[name], k.KeyType))
		}
		return strings.Join(parts, ", ")
	}
	var problems []string
	if got, want := schema(is.KeySchema, kinds), schema(want.KeySchema, wanted); got != want {
		problems = append(problems, fmt.Sprintf("its keys are %s, not %s", got, want))
	}
	for _, i := range want.GlobalSecondaryIndexes {
		n := slices.IndexFunc(is.GlobalSecondaryIndexes, func(o types.GlobalSecondaryIndexDescription) bool {
			return aws.ToString(o.IndexName) == *i.IndexName
		})
		if n < 0 {
			problems = append(problems, fmt.Sprintf("it has no index %s", *i.IndexName))
		} else if got, want := schema(is.GlobalSecondaryIndexes[n].KeySchema, kinds), schema(i.KeySchema, wanted); got != want {
			problems = append(problems, fmt.Sprintf("the keys of its index %s are %s, not %s", *i.IndexName, got, want))
		}
	}
	return problems
}

func (s *Store) setTTL(ctx context.Context) error {
	is, err := s.client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &s.table})
	if err == nil && is.TimeToLiveDescription != nil {
		switch d := is.TimeToLiveDescription; d.TimeToLiveStatus {
		case types.TimeToLiveStatusEnabled, types.TimeToLiveStatusEnabling:
			if name := aws.ToString(d.AttributeName); name != TTLAttribute {
				return fmt.Errorf("it is set on the attribute %s: %w", name, &smithy.GenericAPIError{Code: "ValidationException"})
			}
			return nil
		}
	}
	on, name := true, TTLAttribute
	_, err = s.client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               &s.table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &name, Enabled: &on},
	})
	return err
}

func (s *Store) setRecovery(ctx context.Context) error {
	on := true
	_, err := s.client.UpdateContinuousBackups(ctx, &dynamodb.UpdateContinuousBackupsInput{
		TableName:                        &s.table,
		PointInTimeRecoverySpecification: &types.PointInTimeRecoverySpecification{PointInTimeRecoveryEnabled: &on},
	})
	return err
}
