package script

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// A talk drives a Model by hand as an engine would: it encodes each message
// once and chains the parts.
type talk struct {
	t   testing.TB
	m   *Model
	req psych.Request
	n   int // calls so far
}

func wire(prev psych.Digest, b []byte, marker int) psych.Wire {
	h := sha256.New()
	h.Write(prev[:])
	h.Write(b)
	w := psych.Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
	h.Sum(w.Chain[:0])
	return w
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newTalk(t testing.TB, m *Model) *talk {
	k := &talk{t: t, m: m}
	c := m.Codec()
	tools := must(c.EncodeTools([]psych.ToolDef{{Name: "look", Description: "Looks.", Schema: []byte(`{"type": "object"}`)}}))
	z1, z2, err := c.EncodeSystem([]string{"Be brief.", "Skills: none"}, "The user is Ada.")
	if err != nil {
		t.Fatal(err)
	}
	k.req.Tools = wire(psych.Digest{}, tools, -1)
	k.req.System[0] = wire(k.req.Tools.Chain, z1, -1)
	k.req.System[1] = wire(k.req.System[0].Chain, z2, -1)
	return k
}

// on is k's conversation, continued with another Model.
func (k *talk) on(m *Model) *talk {
	c := *k
	c.m = m
	c.req.History = append([]psych.Wire(nil), k.req.History...)
	return &c
}

func (k *talk) add(m *psych.Message) {
	k.t.Helper()
	b, marker, err := k.m.Codec().EncodeMessage(m)
	if err != nil {
		k.t.Fatal(err)
	}
	prev := k.req.System[1].Chain
	if n := len(k.req.History); n > 0 {
		prev = k.req.History[n-1].Chain
	}
	k.req.History = append(k.req.History, wire(prev, b, marker))
}

func (k *talk) user(text string) {
	k.t.Helper()
	k.add(&psych.Message{Role: psych.RoleUser, Blocks: []psych.Block{{Text: text}}})
}

func (k *talk) results(texts ...string) {
	k.t.Helper()
	m := &psych.Message{Role: psych.RoleTool}
	for i, s := range texts {
		m.Blocks = append(m.Blocks, psych.Block{Result: &psych.ToolOutput{CallID: fmt.Sprintf("c%d_%d", k.n, i+1), Text: s}})
	}
	k.add(m)
}

func (k *talk) try() (*psych.Response, error) {
	return k.m.Generate(context.Background(), &k.req, nil)
}

// answer asks the Model and puts what it said into the history.
func (k *talk) answer() *psych.Response {
	k.t.Helper()
	r, err := k.try()
	if err != nil {
		k.t.Fatal(err)
	}
	k.n++
	m := &psych.Message{Role: psych.RoleAssistant}
	for _, b := range r.Blocks {
		if b.Call != nil {
			call := *b.Call
			call.ID = call.ProviderID
			if !json.Valid(call.Arguments) {
				call.Arguments = []byte("{}")
			}
			b.Call = &call
		}
		m.Blocks = append(m.Blocks, b)
	}
	k.add(m)
	return r
}

// said writes a response on one line.
func said(r *psych.Response) string {
	var l []string
	for _, b := range r.Blocks {
		switch {
		case b.Call != nil:
			l = append(l, b.Call.Name+string(b.Call.Arguments))
		case b.Provider != nil:
			l = append(l, "<"+string(b.Provider)+">")
		default:
			l = append(l, b.Text)
		}
	}
	return strings.Join(l, " ")
}

// refused returns the message of err, which must be a failure for good.
func refused(t testing.TB, err error) string {
	t.Helper()
	var e *psych.ModelError
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want a *ModelError", err)
	}
	if e.Transient || e.Overflow || e.Status != 0 {
		t.Errorf("%+v: want a failure for good", e)
	}
	return e.Message
}

func play(t testing.TB, src string, o *Options) *Model {
	t.Helper()
	s, err := Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return New(s, o)
}
