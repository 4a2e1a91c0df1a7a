package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// A call is a request that a function made of a service, as IAM sees it.
type call struct{ function, action, resource string }

// A recorder stands between functions and the emulator, one listener a function,
// and notes what each asks for.
type recorder struct {
	target *url.URL
	names  map[string]string // of what the stack made: the table, the bucket, the paths of queues, as ⟨ID.Arn⟩

	mu       sync.Mutex
	calls    map[call]int
	requests map[[2]string]int     // by function and operation: PutItem, UploadPart
	tenants  map[string]string     // by the group of their messages
	failPart string                // what the key of an object holds whose next part fails, once
	denials  map[[2]string]*denial // by function, and what stands in the requests to write that it is refused
}

func newRecorder(endpoint string) (*recorder, error) {
	u, err := url.Parse(endpoint)
	return &recorder{target: u, names: map[string]string{}, tenants: map[string]string{}, calls: map[call]int{}, requests: map[[2]string]int{}, denials: map[[2]string]*denial{}}, err
}

// listen returns where a function finds the services.
func (r *recorder) listen(t *testing.T, function string) string {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(r.target)
			p.Out.Host = r.target.Host
		},
		ModifyResponse: func(resp *http.Response) error {
			r.note(t, function, resp)
			return nil
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("X-Amz-Target") != "" { // small, and it says which index
			body, err := io.ReadAll(q.Body)
			if err != nil {
				return // the client left
			}
			q.Body = io.NopCloser(bytes.NewReader(body))
			q = q.WithContext(context.WithValue(q.Context(), bodyKey{}, body))
		}
		if r.refuses(q, function) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.0")
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"__type":"com.amazon.coral.service#AccessDeniedException","message":"so says the test"}`)
			return
		}
		if r.fails(q) {
			io.Copy(io.Discard, q.Body) // else the client may see a broken connection, and no answer
			r.add(function, "UploadPart")
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>so says the test</Message></Error>")
			return
		}
		proxy.ServeHTTP(w, q)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func (r *recorder) add(function, operation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests[[2]string{function, operation}]++
}

// fails reports whether a request is the part that is to fail.
func (r *recorder) fails(q *http.Request) bool {
	if q.Method != http.MethodPut || !q.URL.Query().Has("partNumber") {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failPart == "" || !strings.Contains(q.URL.Path, r.failPart) {
		return false
	}
	r.failPart = ""
	return true
}

// deny has a function's requests to write what holds a text refused, or no more.
func (r *recorder) deny(function, holding string, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denials[[2]string{function, holding}] = &denial{on: on}
}

// A denial is one that is in force, and how often it was met.
type denial struct {
	on  bool
	met int
}

// refused is how many requests were refused since deny said so.
func (r *recorder) refused(function, holding string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.denials[[2]string{function, holding}].met
}

func (r *recorder) refuses(q *http.Request, function string) bool {
	if _, operation, _ := strings.Cut(q.Header.Get("X-Amz-Target"), "."); operation != "PutItem" && operation != "UpdateItem" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, d := range r.denials {
		if d.on && k[0] == function && bytes.Contains(bodyOf(q), []byte(k[1])) {
			d.met++
			return true
		}
	}
	return false
}

// count is what a function asked for so far, by operation.
func (r *recorder) count(function string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for k, v := range r.requests {
		if k[0] == function {
			n[k[1]] = v
		}
	}
	return n
}

// since is what it asked for since count said before.
func (r *recorder) since(function string, before map[string]int) map[string]int {
	n := r.count(function)
	for op := range n {
		if n[op] -= before[op]; n[op] == 0 {
			delete(n, op)
		}
	}
	return n
}

// note notes what a request was, once its answer is known.
func (r *recorder) note(t *testing.T, function string, resp *http.Response) {
	q := resp.Request
	add := func(action, resource string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls[call{function, action, resource}]++
	}
	if target := q.Header.Get("X-Amz-Target"); target != "" {
		service, operation, _ := strings.Cut(target, ".")
		r.add(function, operation)
		var in struct {
			TableName, IndexName, QueueUrl string
			RequestItems                   map[string]json.RawMessage
			Entries                        []struct{ MessageBody, MessageGroupId string }
		}
		if err := json.Unmarshal(bodyOf(q), &in); err != nil {
			t.Errorf("%s: %s: %v", function, target, err)
		}
		switch {
		case strings.HasPrefix(service, "DynamoDB"):
			for name := range in.RequestItems {
				in.TableName = name
			}
			resource := r.name(in.TableName)
			if in.IndexName != "" {
				resource += "/index/" + in.IndexName
			}
			add("dynamodb:"+operation, resource)
		case service == "AmazonSQS":
			u, err := url.Parse(in.QueueUrl)
			if err != nil {
				t.Errorf("%s: %s: %v", function, target, err)
				return
			}
			add("sqs:"+strings.TrimSuffix(operation, "Batch"), r.name(u.Path))
			for _, e := range in.Entries {
				var run psych.RunKey
				if err := json.Unmarshal([]byte(e.MessageBody), &run); operation == "SendMessageBatch" && (err != nil || !r.groups(run.Tenant, e.MessageGroupId)) {
					t.Errorf("%s sends %s of the group %q, %v: want one for each tenant, for fair queues", function, e.MessageBody, e.MessageGroupId, err)
				}
			}
		default:
			t.Errorf("%s calls %s", function, target)
		}
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/")
	resource, query := r.name(bucket), q.URL.Query()
	object := resource + "/*"
	switch {
	case q.Method == http.MethodGet && query.Has("list-type"):
		r.add(function, "ListObjectsV2")
		add("s3:ListBucket", resource)
	case q.Method == http.MethodHead && key == "":
		r.add(function, "HeadBucket")
		add("s3:ListBucket", resource)
	case q.Method == http.MethodPost && query.Has("delete"):
		r.add(function, "DeleteObjects")
		add("s3:DeleteObject", object)
	case q.Method == http.MethodDelete && query.Has("uploadId"):
		r.add(function, "AbortMultipartUpload")
		add("s3:AbortMultipartUpload", object)
	case q.Method == http.MethodDelete && key != "":
		r.add(function, "DeleteObject")
		add("s3:DeleteObject", object)
	case q.Method == http.MethodPut && key != "":
		r.add(function, map[bool]string{true: "UploadPart", false: "PutObject"}[query.Has("partNumber")])
		add("s3:PutObject", object)
	case q.Method == http.MethodPost && (query.Has("uploads") || query.Has("uploadId")):
		r.add(function, map[bool]string{true: "CreateMultipartUpload", false: "CompleteMultipartUpload"}[query.Has("uploads")])
		add("s3:PutObject", object)
	case (q.Method == http.MethodGet || q.Method == http.MethodHead) && key != "":
		r.add(function, map[bool]string{true: "GetObject", false: "HeadObject"}[q.Method == http.MethodGet])
		add("s3:GetObject", object)
		if resp.StatusCode == http.StatusNotFound {
			add("s3:ListBucket", resource) // without it S3 answers 403
		}
	default:
		t.Errorf("%s makes a request that no permission is known for: %s %s", function, q.Method, q.URL)
	}
}

// groups notes the group of a tenant's message, and reports whether no other
// tenant has it, and he no other.
func (r *recorder) groups(tenant, group string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tenants[group] == "" && !slices.Contains(slices.Collect(maps.Values(r.tenants)), tenant) {
		r.tenants[group] = tenant
	}
	return group != "" && r.tenants[group] == tenant
}

// name is what a physical name stands for, or itself.
func (r *recorder) name(physical string) string {
	if id, ok := r.names[physical]; ok {
		return id
	}
	return physical
}

type bodyKey struct{}

func bodyOf(q *http.Request) []byte {
	b, _ := q.Context().Value(bodyKey{}).([]byte)
	return b
}
