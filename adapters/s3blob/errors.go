package s3blob

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/psych-go/psych-go/psych"
)

const noS3 = "what answers is no S3: look at the endpoint, the region, and proxies in between"

// fail wraps what a request or a body returned, with the sentinel that fits and
// what to do about the rest.
func (s *Store) fail(ctx context.Context, op string, what fmt.Stringer, err error) error {
	wrap := func(sentinel error) error { return fmt.Errorf("s3blob: %s %s: %w: %w", op, what, sentinel, err) }
	advise := func(format string, args ...any) error {
		return fmt.Errorf("s3blob: %s %s: %s: %w", op, what, fmt.Sprintf(format, args...), err)
	}
	var reader *readerError
	var foreign *foreignError
	switch {
	case errors.As(err, &reader), errors.Is(err, ErrDamaged), errors.Is(err, psych.ErrTooLarge), errors.Is(err, psych.ErrNotFound):
		return fmt.Errorf("s3blob: %s %s: %w", op, what, err)
	case ctx.Err() != nil:
		// The SDK's error need not wrap the context's.
		return fmt.Errorf("s3blob: %s %s: %w: %w: %w", op, what, psych.ErrUnavailable, ctx.Err(), err)
	case errors.As(err, &foreign):
		return advise(noS3)
	}
	if from := credentialsFrom(err); from != "" {
		if from != "ec2imds" && transient(err) {
			return wrap(psych.ErrUnavailable)
		}
		return advise("no AWS credentials: set AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or give the machine a role")
	}
	if region := s.otherRegion(err); region != "" {
		return advise("bucket %s is in region %s and the client in %s: set region=%s", s.bucket, region, s.client.Options().Region, region)
	}
	switch code := codeOf(err); code {
	case "NoSuchKey":
		return wrap(psych.ErrNotFound)
	case "NotFound": // what the SDK makes of a 404 that names no code
		return advise(noS3)
	case "NoSuchBucket":
		return advise("bucket %s does not exist: create it, or look at its name and account", s.bucket)
	case "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return advise("bucket %s is in another region than %s, or the endpoint is another's: set region=", s.bucket, s.client.Options().Region)
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired":
		return advise("the AWS credentials have expired: renew them")
	case "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "InvalidClientTokenId":
		return advise("S3 does not know these AWS credentials: look at them, and at the endpoint")
	case "RequestTimeTooSkewed":
		return advise("this machine's clock is wrong: set it")
	case "AccessDenied", "Forbidden", "AllAccessDisabled":
		hint := ""
		if s.o.ExpectedOwner != "" {
			hint = fmt.Sprintf("; S3 also answers so when account %s does not own the bucket", s.o.ExpectedOwner)
		}
		return advise("S3 denies access to bucket %s: allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on %s*, and s3:ListBucket, without which a missing object is denied too%s",
			s.bucket, s.prefix, hint)
	}
	if transient(err) {
		return wrap(psych.ErrUnavailable)
	}
	return fmt.Errorf("s3blob: %s %s: %w", op, what, err)
}

// transient reports whether repeating later can help.
func transient(err error) bool {
	switch codeOf(err) {
	case "OperationAborted", "ConditionalRequestConflict", // 409, another request on the bucket or key is going on
		"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody", // damaged on the way
		"NoSuchUpload",                                    // ended by somebody else
		"InternalError", "ServiceUnavailable", "SlowDown": // also in a batch or behind status 200
		return true
	}
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	if errors.As(err, &certificate) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch) {
		return false
	}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) {
		switch status := response.HTTPStatusCode(); {
		case status == http.StatusNotImplemented:
			return false
		case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
			return true
		}
	}
	var send *smithyhttp.RequestSendError
	return errors.As(err, &send) || errors.Is(err, io.ErrUnexpectedEOF) ||
		retry.IsErrorRetryables(retry.DefaultRetryables).IsErrorRetryable(err) == aws.TrueTernary
}

func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func isStatus(err error, status int) bool {
	var response *smithyhttp.ResponseError
	return credentialsFrom(err) == "" && errors.As(err, &response) && response.HTTPStatusCode() == status
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

// otherRegion returns the bucket's region, where S3 says that it is another
// than the client's.
func (s *Store) otherRegion(err error) string {
	var response *smithyhttp.ResponseError
	if !errors.As(err, &response) || response.Response == nil {
		return ""
	}
	switch response.HTTPStatusCode() {
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusBadRequest:
		if region := response.Response.Header.Get("X-Amz-Bucket-Region"); region != s.client.Options().Region {
			return region
		}
	}
	return ""
}

// A foreignError is an answer that no S3 gives.
type foreignError struct{ got string }

func (e *foreignError) Error() string { return "the endpoint answered with " + e.got }

// tune makes a request fail where a web server, a proxy or a login page
// answers it: the SDK takes any 200 for success.
func (s *Store) tune(o *s3.Options) {
	o.DisableLogOutputChecksumValidationSkipped = true
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("s3blob:HTML", refuseHTML), middleware.After)
	})
}

func refuseHTML(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
	out, meta, err := next.HandleDeserialize(ctx, in)
	r, ok := out.RawResponse.(*smithyhttp.Response)
	switch {
	case err != nil || !ok || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/html"):
	case r.StatusCode < 300 && r.Header.Get("Etag") != "": // a blob may be a page
	case r.StatusCode >= 500: // a load balancer's
	default:
		// Some services have the type on answers that are none.
		start := bufio.NewReader(r.Body)
		head, _ := start.Peek(100)
		text := strings.ToLower(strings.TrimSpace(string(head)))
		if strings.HasPrefix(text, "<!doctype html") || strings.HasPrefix(text, "<html") {
			return out, meta, &foreignError{fmt.Sprintf("a page of HTML and status %d", r.StatusCode)}
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{start, r.Body}
	}
	return out, meta, err
}
