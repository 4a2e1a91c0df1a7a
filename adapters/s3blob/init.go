package s3blob

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

const incompleteDays = 7 // after which Init's rule ends an upload that was begun

// Init creates the bucket if there is none, blocks public access to one that
// it created, and sets a lifecycle rule that ends uploads which killed writers
// left, if the bucket has no lifecycle rules yet; it may be repeated. A bucket
// that was there keeps its settings otherwise. Notes say what was done, what
// was refused or is not known to the endpoint, and what of the bucket is worth
// a look. The error is that of a bucket that can't be used.
func (s *Store) Init(ctx context.Context) (notes []string, err error) {
	if err := s.begin(ctx, nil); err != nil {
		return nil, fmt.Errorf("s3blob: init: %w", err)
	}
	created := false
	_, err = s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner()}, s.tune)
	if isStatus(err, http.StatusNotFound) {
		if created, err = s.createBucket(ctx); created {
			notes = append(notes, "created bucket "+s.bucket+" in region "+s.client.Options().Region)
		}
	}
	if err != nil {
		return nil, s.fail(ctx, "init", s, err)
	}
	s.seen.Store(true)
	for _, step := range []func(context.Context, bool) (string, error){s.blockPublic, s.endUploads, s.lookAtVersions} {
		note, err := step(ctx, created)
		if ctx.Err() != nil {
			return notes, s.fail(ctx, "init", s, err)
		}
		if err != nil {
			note = note + ": " + reason(err)
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes, nil
}

// reason is what a note says of an error: the whole is long and has ids of
// requests, which differ each time.
func reason(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return strings.TrimSuffix(api.ErrorCode()+": "+api.ErrorMessage(), ": ")
	}
	return err.Error()
}

func (s *Store) createBucket(ctx context.Context) (bool, error) {
	in := &s3.CreateBucketInput{Bucket: &s.bucket}
	// S3 refuses the name of its first region here.
	if region := s.client.Options().Region; region != "us-east-1" {
		in.CreateBucketConfiguration = &types.CreateBucketConfiguration{LocationConstraint: types.BucketLocationConstraint(region)}
	}
	_, err := s.client.CreateBucket(ctx, in, s.tune)
	switch codeOf(err) {
	case "BucketAlreadyOwnedByYou": // by another process just now, or by a repeated request
		return false, nil
	case "BucketAlreadyExists":
		return false, fmt.Errorf("the name is taken by another account: choose another: %w", err)
	}
	return err == nil, err
}

func (s *Store) blockPublic(ctx context.Context, created bool) (string, error) {
	got, err := s.client.GetPublicAccessBlock(ctx, &s3.GetPublicAccessBlockInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner()}, s.tune)
	if err != nil && codeOf(err) != "NoSuchPublicAccessBlockConfiguration" {
		return "could not read whether the bucket blocks public access", err
	}
	if err == nil && got.PublicAccessBlockConfiguration != nil {
		if c := got.PublicAccessBlockConfiguration; aws.ToBool(c.BlockPublicAcls) && aws.ToBool(c.BlockPublicPolicy) && aws.ToBool(c.IgnorePublicAcls) && aws.ToBool(c.RestrictPublicBuckets) {
			return "", nil
		}
	}
	if !created {
		return "bucket " + s.bucket + " does not block public access: turn that on unless it is meant", nil
	}
	on := aws.Bool(true)
	_, err = s.client.PutPublicAccessBlock(ctx, &s3.PutPublicAccessBlockInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner(),
		PublicAccessBlockConfiguration: &types.PublicAccessBlockConfiguration{BlockPublicAcls: on, BlockPublicPolicy: on, IgnorePublicAcls: on, RestrictPublicBuckets: on},
	}, s.tune)
	if err != nil {
		return "could not block public access", err
	}
	return "blocked public access", nil
}

func (s *Store) endUploads(ctx context.Context, _ bool) (string, error) {
	const refused = "no lifecycle rule ends incomplete uploads, and none could be set"
	got, err := s.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner()}, s.tune)
	switch {
	case err != nil && codeOf(err) != "NoSuchLifecycleConfiguration":
		return "could not read whether a lifecycle rule ends incomplete uploads", err
	case err == nil && len(got.Rules) > 0:
		for _, r := range got.Rules {
			if r.Status == types.ExpirationStatusEnabled && r.AbortIncompleteMultipartUpload != nil && strings.HasPrefix(s.prefix, rulePrefix(r)) {
				return "", nil
			}
		}
		// Setting rules replaces all there are.
		return fmt.Sprintf("the bucket has lifecycle rules, and none ends incomplete uploads below %q: add one", s.prefix), nil
	}
	_, err = s.client.PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner(),
		LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{{
			ID: aws.String("psych-incomplete-uploads"), Status: types.ExpirationStatusEnabled,
			Filter:                         &types.LifecycleRuleFilter{Prefix: &s.prefix},
			AbortIncompleteMultipartUpload: &types.AbortIncompleteMultipartUpload{DaysAfterInitiation: aws.Int32(incompleteDays)},
		}}},
	}, s.tune)
	if err != nil {
		return refused, err
	}
	return fmt.Sprintf("set a lifecycle rule that ends incomplete uploads after %d days", incompleteDays), nil
}

// rulePrefix is what keys must begin with for a rule; a rule with other
// conditions, which can't be met by an upload, has one that no key begins with.
func rulePrefix(r types.LifecycleRule) string {
	switch f := r.Filter; {
	case f == nil:
		//lint:ignore SA1019 rules of old buckets still have it
		return aws.ToString(r.Prefix)
	case f.And != nil || f.Tag != nil || f.ObjectSizeGreaterThan != nil || f.ObjectSizeLessThan != nil:
		return "\x00"
	default:
		return aws.ToString(f.Prefix)
	}
}

func (s *Store) lookAtVersions(ctx context.Context, _ bool) (string, error) {
	got, err := s.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner()}, s.tune)
	if err != nil {
		return "could not read whether the bucket keeps old versions", err
	}
	if got.Status == types.BucketVersioningStatusEnabled {
		return "the bucket keeps old versions, of deleted Runs too: a lifecycle rule must end them", nil
	}
	return "", nil
}
