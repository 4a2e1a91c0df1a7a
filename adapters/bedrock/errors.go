package bedrock

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/types"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// failure makes a ModelError that says of which model, and of which request.
func (m *Model) failure(message, id string, err error) *psych.ModelError {
	if id = messages.Readable(id); id != "" {
		message += " [request " + id + "]"
	}
	return &psych.ModelError{Message: fmt.Sprintf("bedrock: %s: %s", m, message), RequestID: id, Err: err}
}

// A fault is what an error code of Bedrock's means.
type fault struct {
	status    int
	transient bool
	advice    string
}

const (
	renew       = "check that the credentials are current (AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or a role)"
	permissions = "allow bedrock:InvokeModelWithResponseStream on the model and its inference profile, and check that the account has access to the model"
)

// faults is the table of error codes, of answers and of streams alike: those
// that Bedrock documents, and those of AWS's front door.
var faults = map[string]fault{
	"ThrottlingException":         {http.StatusTooManyRequests, true, ""},
	"ModelNotReadyException":      {http.StatusTooManyRequests, true, ""},
	"ModelTimeoutException":       {http.StatusRequestTimeout, true, ""},
	"ModelErrorException":         {http.StatusFailedDependency, true, ""},
	"ModelStreamErrorException":   {http.StatusFailedDependency, true, ""},
	"InternalServerException":     {http.StatusInternalServerError, true, ""},
	"ServiceUnavailableException": {http.StatusServiceUnavailable, true, ""},

	"ValidationException":           {http.StatusBadRequest, false, ""},
	"ServiceQuotaExceededException": {http.StatusBadRequest, false, "raise the quota of the account"},
	"ResourceNotFoundException":     {http.StatusNotFound, false, "check the id of the model and the region"},
	"AccessDeniedException":         {http.StatusForbidden, false, permissions},

	"UnrecognizedClientException":         {http.StatusForbidden, false, renew},
	"InvalidClientTokenId":                {http.StatusForbidden, false, renew},
	"InvalidSignatureException":           {http.StatusForbidden, false, renew},
	"IncompleteSignatureException":        {http.StatusForbidden, false, renew},
	"MissingAuthenticationTokenException": {http.StatusForbidden, false, renew},
	"ExpiredTokenException":               {http.StatusForbidden, false, renew},
}

// refused classifies an error that came before any stream.
func (m *Model) refused(err error) *psych.ModelError {
	var api smithy.APIError
	var response *awshttp.ResponseError
	answered := errors.As(err, &response) && response.HTTPStatusCode() != 0
	if !errors.As(err, &api) && !answered {
		return m.unreachable(err)
	}
	id, status, retryAfter := "", 0, time.Duration(0)
	if answered {
		id, status = response.ServiceRequestID(), response.HTTPStatusCode()
		if response.Response != nil {
			retryAfter = messages.RetryAfter(response.Response.Header, time.Now())
		}
	}
	if api == nil {
		e := m.failure("what answers is not Bedrock: check the endpoint: "+messages.Readable(err.Error()), id, err)
		e.Status, e.Transient, e.RetryAfter = status, messages.TransientStatus(status), retryAfter
		return e
	}
	e := m.classified(api, id, status, err)
	e.RetryAfter = retryAfter
	return e
}

// classified makes a failure of an error of Bedrock's.
func (m *Model) classified(api smithy.APIError, id string, status int, err error) *psych.ModelError {
	f, known := faults[api.ErrorCode()]
	if !known {
		f = fault{status: status, transient: status == 0 || messages.TransientStatus(status)}
	}
	if status != 0 {
		f.status = status
	}
	said := messages.Said{Message: messages.Readable(api.ErrorMessage()), Type: api.ErrorCode()}
	var failed *types.ModelErrorException
	if errors.As(err, &failed) && failed.OriginalStatusCode != nil && *failed.OriginalStatusCode >= 400 {
		// The model's own answer says whether it is worth another try.
		f.transient = messages.TransientStatus(int(*failed.OriginalStatusCode))
	}
	var cut *types.ModelStreamErrorException
	if errors.As(err, &cut) && cut.OriginalMessage != nil {
		said.Message += ": " + messages.Readable(*cut.OriginalMessage)
	}
	text := said.String()
	if f.advice != "" {
		text += ": " + f.advice
	}
	e := m.failure(text, id, err)
	e.Status = f.status
	e.Overflow = said.Overflow(f.status)
	e.Refused = said.Refused(f.status)
	e.Transient = f.transient && !e.Overflow
	return e
}

// unreachable is a request that got no answer, or could not be signed. A
// certificate that does not hold, and credentials that are not there, will not
// be there in a second either.
func (m *Model) unreachable(err error) *psych.ModelError {
	var outer, source *smithy.OperationError
	var empty *credentials.StaticCredentialsEmptyError
	if errors.As(err, &outer) && errors.As(outer.Err, &source) || errors.As(err, &empty) {
		e := m.failure("there are no AWS credentials: set AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or give the machine a role: "+messages.Readable(err.Error()), "", err)
		// A service that gives credentials may be down; that there is none stays.
		e.Transient = empty == nil && source.Service() != "ec2imds" && retryable.IsErrorRetryable(err).Bool()
		return e
	}
	e := m.failure("Bedrock can't be reached: "+messages.Readable(err.Error()), "", err)
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	e.Transient = !errors.As(err, &certificate) && !errors.As(err, &authority) && !errors.As(err, &host)
	return e
}

// retryable is what the SDK would try again.
var retryable = retry.IsErrorRetryables(retry.DefaultRetryables)

// broken is a stream that ended with an error, of Bedrock's or of the
// connection's.
func (m *Model) broken(id string, err error) *psych.ModelError {
	var api smithy.APIError
	if errors.As(err, &api) {
		return m.classified(api, id, 0, err)
	}
	e := m.failure("its stream was cut: "+messages.Readable(err.Error()), id, err)
	e.Transient = true
	return e
}

// garbled is an event that can't be understood, or one too many.
func (m *Model) garbled(id string, err error) *psych.ModelError {
	if errors.Is(err, messages.ErrTooMuch) {
		return m.failure("its answer is no answer: "+err.Error(), id, err)
	}
	e := m.failure("its stream holds what is no piece of an answer: "+messages.Readable(err.Error()), id, err)
	e.Transient = true
	return e
}

// refusedInStream classifies an error of the model's among its events, by its
// type. One of an unknown type is worth repeating.
func (m *Model) refusedInStream(id string, sent json.RawMessage) *psych.ModelError {
	said := messages.ParseError(sent)
	text := said.String()
	if text == "" {
		text = "no reason was given"
	}
	e := m.failure("it sent an error instead of an answer: "+text, id, nil)
	e.Status = said.Status()
	e.Overflow = said.Overflow(e.Status)
	e.Refused = said.Refused(e.Status)
	e.Transient = !e.Overflow && (e.Status == 0 || messages.TransientStatus(e.Status))
	return e
}
