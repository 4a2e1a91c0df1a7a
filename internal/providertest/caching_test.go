package providertest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/psych"
)

// asOpenAI sends to a Stub what is meant for OpenAI.
type asOpenAI struct{ stub *url.URL }

func (x asOpenAI) RoundTrip(r *http.Request) (*http.Response, error) {
	to := r.Clone(r.Context())
	to.URL.Scheme, to.URL.Host, to.Host = x.stub.Scheme, x.stub.Host, x.stub.Host
	to.URL.Path = strings.TrimPrefix(to.URL.Path, "/v1")
	return http.DefaultTransport.RoundTrip(to)
}

// OpenAI's models that take explicit breakpoints get them without being asked:
// four at most in each request of a Run, none in a trailing message, and the key
// of the Run. Those before get the key alone.
func TestOpenAICachesByDefault(t *testing.T) {
	for _, api := range []API{Chat, Responses} {
		for _, name := range []string{"gpt-5.6-sol", "gpt-5.5"} {
			t.Run(fmt.Sprint(api, ", ", name), func(t *testing.T) {
				p := &provider{name: name, api: api, model: func(raw string) psych.Model {
					u, err := url.Parse(raw)
					if err != nil {
						t.Fatal(err)
					}
					return openai.New(name, &openai.Options{Responses: api == Responses, CacheTTL: map[string]string{"gpt-5.5": "24h", "gpt-5.6-sol": "12h"}[name], HTTPClient: &http.Client{Transport: asOpenAI{u}}})
				}}
				r := newRun(t, p, func(q *Request) *Answer {
					if strings.Contains(q.Last, "?") {
						var cs []Call
						for i := range 9 {
							cs = append(cs, call("lookup", object{"at": i}))
						}
						return calls(cs...)
					}
					return says("so")
				})
				for _, s := range []string{"a?", "b?", "c?"} {
					r.say(psych.ClientMessage{Text: s})
				}
				r.check(p)
				most, keys := 0, map[string]bool{}
				for _, q := range r.stub.Requests() {
					most = max(most, q.Markers)
					_, key, _ := bytes.Cut(q.Body, []byte(`"prompt_cache_key":"`))
					keys[string(key[:min(32, len(key))])] = true
				}
				want := map[string]int{"gpt-5.6-sol": 4, "gpt-5.5": 0}[name]
				if n := len(r.stub.Requests()); n != 6 || most != want || len(keys) != 1 || keys[""] {
					t.Errorf("%d requests, %d markers at most, want %d; keys %v", n, most, want, keys)
				}
			})
		}
	}
}
