package dynamo

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/psych"
)

// retryable knows what the SDK takes for throttling, a fault of the server or
// the connection. By then the SDK has repeated the request itself.
var retryable = retry.IsErrorRetryables(retry.DefaultRetryables)

// classify makes an error of the SDK one of psych's where there is one for it,
// and says of others what to do.
func (s *Store) classify(ctx context.Context, err error) error {
	var (
		missing   *types.ResourceNotFoundException
		api       smithy.APIError
		malformed *smithy.DeserializationError
	)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w: %w", psych.ErrUnavailable, ctx.Err(), err)
	case credentialsFrom(err) == "ec2imds", credentialsFrom(err) != "" && !retryable.IsErrorRetryable(err).Bool():
		return fmt.Errorf("no AWS credentials: set AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or give the machine a role: %w", err)
	case retryable.IsErrorRetryable(err).Bool(), errors.Is(err, io.ErrUnexpectedEOF): // cut on its way
		return fmt.Errorf("%w: %w", psych.ErrUnavailable, err)
	case errors.As(err, &missing):
		return fmt.Errorf("there is no table %q in the region and account of the client: create it with Init (psych store init): %w", s.table, err)
	case errors.As(err, &malformed):
		return fmt.Errorf("what answers is not DynamoDB: check the endpoint: %w", err)
	case errors.As(err, &api):
		switch api.ErrorCode() {
		case "ValidationException":
			return fmt.Errorf("the table %q has other keys or indexes than Init makes, or the endpoint other limits: %w", s.table, err)
		case "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException", "MissingAuthenticationTokenException", "IncompleteSignatureException":
			return fmt.Errorf("the credentials are refused: check that they are current, and permit the table %q: %w", s.table, err)
		case "UnknownError", "":
			return fmt.Errorf("what answers is not DynamoDB: check the endpoint: %w", err)
		}
	}
	return err
}

// credentialsFrom returns the service that was asked for credentials, if that
// is what failed.
func credentialsFrom(err error) string {
	var outer, inner *smithy.OperationError
	if errors.As(err, &outer) && errors.As(outer.Err, &inner) {
		return inner.Service()
	}
	return ""
}

// errCondition says that the condition of a write did not hold.
var errCondition = errors.New("condition failed")

// conditional returns the item as it was when the condition of a write to key
// failed, with errCondition; any other error is classified. Where the endpoint
// brings no old item, it is read.
func (s *Store) conditional(ctx context.Context, key item, err error) (item, error) {
	var failed *types.ConditionalCheckFailedException
	if !errors.As(err, &failed) {
		return nil, s.classify(ctx, err)
	}
	if len(failed.Item) > 0 {
		return failed.Item, errCondition
	}
	old, err := s.getItem(ctx, key)
	if err != nil {
		return nil, err
	}
	return old, errCondition
}

// put writes an item if condition holds. If not, it returns the item that is
// there with errCondition.
func (s *Store) put(ctx context.Context, it item, condition string, values item) (item, error) {
	in := &dynamodb.PutItemInput{
		TableName:                           &s.table,
		Item:                                it,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
	if condition != "" {
		in.ConditionExpression = &condition
	}
	if len(values) > 0 {
		in.ExpressionAttributeValues = values
	}
	_, err := s.client.PutItem(ctx, in)
	if err == nil {
		return nil, nil
	}
	return s.conditional(ctx, item{pk: it[pk], sk: it[sk]}, err)
}

// update changes an item if condition holds, and returns it as it is then. If
// not, it returns the item that is there with errCondition.
func (s *Store) update(ctx context.Context, key item, expression, condition string, values item) (item, error) {
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                           &s.table,
		Key:                                 key,
		UpdateExpression:                    &expression,
		ConditionExpression:                 &condition,
		ExpressionAttributeValues:           values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err == nil {
		return out.Attributes, nil
	}
	return s.conditional(ctx, key, err)
}

// getItem reads an item consistently; nil if it is not there.
func (s *Store) getItem(ctx context.Context, key item) (item, error) {
	consistent := true
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.table, Key: key, ConsistentRead: &consistent})
	if err != nil {
		return nil, s.classify(ctx, err)
	}
	return out.Item, nil
}

// races bounds how often a write whose condition others keep changing is tried.
const races = 50

var errRaces = fmt.Errorf("others changed the item %d times: %w", races, psych.ErrUnavailable)
