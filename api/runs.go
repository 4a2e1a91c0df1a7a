package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

//go:embed openapi.json
var document []byte

// Document is the OpenAPI 3.1 document of this API, which GET /openapi.json
// serves.
func Document() []byte { return slices.Clone(document) }

func (h *Handler) openapi(w http.ResponseWriter, r *request) error {
	w.Header().Set("Content-Type", "application/json")
	w.Write(document)
	return nil
}

// answer writes v as JSON.
func (h *Handler) answer(w http.ResponseWriter, status int, v any) error {
	body, err := marshal(v)
	if err != nil {
		return fmt.Errorf("api: encode an answer: %w", err)
	}
	if h.o.MaxAnswer > 0 && len(body) > h.o.MaxAnswer {
		return &problem{Status: http.StatusNotImplemented, Code: "answer_too_large", Title: "The answer is larger than this deployment can send",
			Detail: fmt.Sprintf("It has %d bytes, and %d are possible. The records of a Run come in pages.", len(body), h.o.MaxAnswer)}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body) // an error is the client's connection
	return nil
}

type versionAnswer struct {
	Version   psych.Digest    `json:"version"`
	Spec      psych.Spec      `json:"spec"`
	CodeTools []psych.ToolDef `json:"code_tools"`
}

func newVersionAnswer(v *psych.Version) versionAnswer {
	return versionAnswer{v.Hash, v.Spec, append([]psych.ToolDef{}, v.CodeTools...)}
}

func (h *Handler) publish(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	data, err := h.body(w, r)
	if err != nil {
		return err
	}
	spec, err := psych.ParseSpec(data)
	if err != nil {
		return err
	}
	v, err := h.rt.Publish(r.Context(), r.scope.Tenant, spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/versions/"+v.Hash.String())
	return h.answer(w, http.StatusCreated, newVersionAnswer(v))
}

func (h *Handler) version(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	var hash psych.Digest
	if err := hash.UnmarshalText([]byte(r.PathValue("version"))); err != nil {
		return invalid("the version is %.80q: want 64 hexadecimal digits", r.PathValue("version"))
	}
	v, err := h.published(r, hash)
	if err != nil {
		return err
	}
	return h.answer(w, http.StatusOK, newVersionAnswer(v))
}

// published reads a Version of the caller's tenant.
func (h *Handler) published(r *request, hash psych.Digest) (*psych.Version, error) {
	v, err := h.rt.Version(r.Context(), r.scope.Tenant, hash)
	if errors.Is(err, psych.ErrNotFound) {
		return nil, &problem{Status: http.StatusNotFound, Code: "not_found", Title: "There is no such Version", Detail: "POST /v1/versions publishes one."}
	}
	return v, err
}

// A messageBody is what a client says.
type messageBody struct {
	ID          string           `json:"id"`
	Text        string           `json:"text"`
	Attachments []attachmentBody `json:"attachments"`
}

// An attachmentBody has a text, or other bytes in base64.
type attachmentBody struct {
	Name        string      `json:"name"`
	ContentType string      `json:"content_type"`
	Text        *string     `json:"text"`
	Base64      *base64Body `json:"base64"`
}

// A base64Body is a text of base64, where encoding/json would take an array of
// numbers, too.
type base64Body []byte

func (b *base64Body) UnmarshalText(text []byte) (err error) {
	*b, err = base64.StdEncoding.AppendDecode(nil, text)
	return err
}

// message is a body as a message, whose id is that of the header or the body, or
// a random one.
func (m *messageBody) message(header http.Header) (psych.ClientMessage, error) {
	key, err := idempotencyKey(header)
	switch {
	case err != nil:
		return psych.ClientMessage{}, err
	case key != "" && m.ID != "" && key != m.ID:
		return psych.ClientMessage{}, invalid("the header Idempotency-Key and the message's id differ: give one of them")
	case key == "":
		key = m.ID
	}
	if key == "" {
		key = randomID()
	}
	c := psych.ClientMessage{ID: key, Text: m.Text}
	for i, a := range m.Attachments {
		at := psych.MessageAttachment{Name: a.Name, ContentType: a.ContentType}
		switch {
		case (a.Text == nil) == (a.Base64 == nil):
			return c, invalid("attachment %d has neither text nor base64, or both: want one", i+1)
		case a.Text != nil:
			at.Data = []byte(*a.Text)
			if at.ContentType == "" {
				at.ContentType = "text/plain"
			}
		default:
			at.Data = *a.Base64
		}
		c.Attachments = append(c.Attachments, at)
	}
	return c, nil
}

type posted struct {
	RunID     string `json:"run_id"`
	MessageID string `json:"message_id"`
}

func (h *Handler) createRun(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	data, err := h.body(w, r)
	if err != nil {
		return err
	}
	var b struct {
		Version psych.Digest `json:"version"`
		Message messageBody  `json:"message"`
	}
	if err := decode(data, &b); err != nil {
		return err
	}
	if b.Version.IsZero() {
		return invalid("the body names no version: POST /v1/versions publishes one")
	}
	m, err := b.Message.message(r.Header)
	if err != nil {
		return err
	}
	if _, err := h.published(r, b.Version); err != nil {
		return err
	}
	key, err := h.rt.Start(r.Context(), r.scope, b.Version, m)
	switch {
	case errors.Is(err, psych.ErrConflict):
		return &problem{Status: http.StatusConflict, Code: "conflict", Title: "This key began another Run", Detail: "A Run was created with the same Idempotency-Key and another Version or message: use another key."}
	case errors.Is(err, psych.ErrNotFound):
		return &problem{Status: http.StatusNotFound, Code: "not_found", Title: "This Run was deleted", Detail: "The Run that was created with this Idempotency-Key is gone: use another key."}
	case err != nil:
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+key.RunID)
	return h.answer(w, http.StatusCreated, posted{key.RunID, m.ID})
}

// A runAnswer is a Run's header. Its status is a copy of the log's, and lags
// while a worker is at the Run.
type runAnswer struct {
	RunID     string            `json:"run_id"`
	Principal string            `json:"principal,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Version   psych.Digest      `json:"version"`
	Status    string            `json:"status"`
	Active    bool              `json:"active"` // it is driven, or wants to be
	CreatedAt time.Time         `json:"created_at"`
	ExpiresAt *time.Time        `json:"expires_at"`
	DueAt     *time.Time        `json:"due_at"`
}

func newRunAnswer(i psych.RunInfo) runAnswer {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		t = t.UTC()
		return &t
	}
	return runAnswer{
		RunID: i.Key.RunID, Principal: i.Scope.Principal, Labels: i.Scope.Labels, Version: i.Version, Status: i.Status,
		Active: i.Owner != "" || !i.DueAt.IsZero(), CreatedAt: i.CreatedAt.UTC(), ExpiresAt: at(i.ExpiresAt), DueAt: at(i.DueAt),
	}
}

// maxList bounds a page of a list.
const maxList = 100

func (h *Handler) listRuns(w http.ResponseWriter, r *request) error {
	q, err := r.query("cursor", "limit")
	if err != nil {
		return err
	}
	limit, err := number(q, "limit", maxList, maxList)
	if err != nil {
		return err
	}
	if limit == 0 {
		return invalid("limit is 0: want 1 to %d", maxList)
	}
	infos, next, err := h.store.ListRuns(r.Context(), r.scope.Tenant, q.Get("cursor"), int(limit))
	if errors.Is(err, psych.ErrInvalid) {
		return invalid("cursor is %.80q: want the next of an answer", q.Get("cursor"))
	}
	if err != nil {
		return err
	}
	page := struct {
		Runs []runAnswer `json:"runs"`
		Next string      `json:"next,omitempty"`
	}{[]runAnswer{}, next}
	for _, i := range infos {
		page.Runs = append(page.Runs, newRunAnswer(i))
	}
	return h.answer(w, http.StatusOK, page)
}

// errNoRun says no more of a Run than that the caller's tenant has none so.
var errNoRun = &problem{Status: http.StatusNotFound, Code: "not_found", Title: "There is no such Run", Detail: "GET /v1/runs lists the Runs of your tenant."}

// ofRun gives the error of a Run that is not there its words.
func ofRun(err error) error {
	if errors.Is(err, psych.ErrNotFound) {
		return errNoRun
	}
	return err
}

// header reads the header of the Run of the path.
func (h *Handler) header(r *request) (psych.RunInfo, error) {
	key, err := r.run()
	if err != nil {
		return psych.RunInfo{}, err
	}
	info, err := h.store.GetRun(r.Context(), key)
	return info, ofRun(err)
}

func (h *Handler) getRun(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	info, err := h.header(r)
	if err != nil {
		return err
	}
	return h.answer(w, http.StatusOK, newRunAnswer(info))
}

func (h *Handler) deleteRun(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	// So that no client leaves tombstones of what never was.
	info, err := h.header(r)
	if err != nil {
		return err
	}
	if err := h.rt.Delete(r.Context(), info.Key); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *Handler) send(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	key, err := r.run()
	if err != nil {
		return err
	}
	data, err := h.body(w, r)
	if err != nil {
		return err
	}
	var b messageBody
	if err := decode(data, &b); err != nil {
		return err
	}
	m, err := b.message(r.Header)
	if err != nil {
		return err
	}
	if err := h.rt.Send(r.Context(), key, m); err != nil {
		return ofRun(err)
	}
	return h.answer(w, http.StatusAccepted, posted{key.RunID, m.ID})
}

func (h *Handler) abort(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	key, err := r.run()
	if err != nil {
		return err
	}
	var b struct {
		ID      string `json:"id"`
		Message string `json:"message"`
		Reason  string `json:"reason"`
	}
	var data []byte
	if r.ContentLength == 0 && r.Header.Get("Content-Type") == "" { // nothing to say is fine
		data = []byte("{}")
	} else if data, err = h.body(w, r); err != nil {
		return err
	}
	if err := decode(data, &b); err != nil {
		return err
	}
	id, err := idempotencyKey(r.Header)
	switch {
	case err != nil:
		return err
	case id != "" && b.ID != "" && id != b.ID:
		return invalid("the header Idempotency-Key and the id differ: give one of them")
	case id == "":
		id = b.ID
	}
	if id == "" {
		id = randomID()
	}
	if err := h.rt.Abort(r.Context(), key, psych.AbortRequest{ID: id, Message: b.Message, Reason: b.Reason}); err != nil {
		return ofRun(err)
	}
	return h.answer(w, http.StatusAccepted, struct {
		RunID   string `json:"run_id"`
		AbortID string `json:"abort_id"`
	}{key.RunID, id})
}

func (h *Handler) report(w http.ResponseWriter, r *request) error {
	if _, err := r.query(); err != nil {
		return err
	}
	info, err := h.header(r)
	if err != nil {
		return err
	}
	head, err := h.store.Head(r.Context(), info.Key)
	if err != nil {
		return ofRun(err)
	}
	// What a report says follows from the log and what was posted. It is read
	// behind its tag, and so never older.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", info.Incarnation, head.Seq, info.Posted))
	tag := `W/"` + hex.EncodeToString(sum[:12]) + `"`
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "private, no-cache")
	if matches(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	rep, err := h.rt.Report(r.Context(), info.Key)
	if err != nil {
		return ofRun(err)
	}
	return h.answer(w, http.StatusOK, rep)
}

// matches reports whether If-None-Match names a tag.
func matches(values []string, tag string) bool {
	for _, v := range values {
		for _, t := range strings.Split(v, ",") {
			if t = strings.TrimSpace(t); t == "*" || strings.TrimPrefix(t, "W/") == strings.TrimPrefix(tag, "W/") {
				return true
			}
		}
	}
	return false
}

// A windowAnswer is a window of a stored output, as psych.OutputWindow has it.
type windowAnswer struct {
	Text        string `json:"text"`
	Unit        string `json:"unit,omitempty"`
	Offset      int64  `json:"offset"`
	NextOffset  *int64 `json:"next_offset"` // null: there is no more
	NextFrom    int64  `json:"next_from,omitempty"`
	Truncated   bool   `json:"truncated"`
	TotalChars  int64  `json:"total_chars"`
	TotalLines  int64  `json:"total_lines"`
	Matches     *int64 `json:"matches"`
	Binary      bool   `json:"binary"`
	ContentType string `json:"content_type"`
	SizeBytes   int64  `json:"size_bytes"`
}

func (h *Handler) output(w http.ResponseWriter, r *request) error {
	q, err := r.query("offset", "limit", "grep", "unit", "ignore_case", "context", "from")
	if err != nil {
		return err
	}
	key, err := r.run()
	if err != nil {
		return err
	}
	o := psych.OutputQuery{Grep: q.Get("grep"), Unit: q.Get("unit")}
	var errs [5]error
	o.Offset, errs[0] = number(q, "offset", 0, math.MaxInt64)
	o.Limit, errs[1] = number(q, "limit", 0, math.MaxInt64)
	o.Context, errs[2] = number(q, "context", 0, math.MaxInt64)
	o.From, errs[3] = number(q, "from", 0, math.MaxInt64)
	o.IgnoreCase, errs[4] = boolean(q, "ignore_case")
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	handle := r.PathValue("handle")
	win, err := h.rt.Output(r.Context(), key, handle, o)
	if errors.Is(err, psych.ErrNotFound) {
		if _, gone := h.store.GetRun(r.Context(), key); errors.Is(gone, psych.ErrNotFound) {
			return errNoRun
		}
		return &problem{Status: http.StatusNotFound, Code: "not_found", Title: "There is no such output", Detail: "The handles of this Run's outputs stand in its report."}
	}
	if err != nil {
		return err
	}
	a := windowAnswer{
		Text: win.Text, Unit: win.Unit, Offset: win.Offset, NextFrom: win.NextFrom, Truncated: win.Truncated, TotalChars: win.TotalChars,
		TotalLines: win.TotalLines, Matches: win.Matches, Binary: win.Binary, ContentType: win.ContentType, SizeBytes: win.Size,
	}
	if !win.AtEnd {
		a.NextOffset = &win.NextOffset
	}
	return h.answer(w, http.StatusOK, a)
}

// A page is records of a log, each as JSON.
type page struct {
	records []json.RawMessage
	seqs    []uint64
	next    psych.Pos
	more    bool
	closed  bool // the last of them ends an exchange
}

// pageBytes is how many bytes of records an answer has, one record more: within
// what a function may answer with, also where that is quoted once more.
const pageBytes = 1 << 20

// page reads records behind a position.
func (h *Handler) page(r *request, key psych.RunKey, after psych.Pos, limit int) (*page, error) {
	p, err := h.readPage(r, key, after, limit)
	var corrupt *psych.CorruptionError
	if errors.As(err, &corrupt) && after.Mark != "" {
		// The mark of a position is believed by stores: one that was tampered
		// with must not make a log look damaged.
		return h.readPage(r, key, psych.Pos{Seq: after.Seq}, limit)
	}
	return p, err
}

func (h *Handler) readPage(r *request, key psych.RunKey, after psych.Pos, limit int) (*page, error) {
	p := &page{next: after}
	size := 0
	for rec, err := range h.rt.Records(r.Context(), key, after) {
		if err != nil {
			return nil, ofRun(err)
		}
		if len(p.records) == limit || size >= pageBytes {
			p.more = true
			break
		}
		line, err := rec.MarshalJSON()
		if err != nil {
			return nil, err
		}
		line = bytes.TrimSpace(line)
		size += len(line)
		p.records, p.seqs = append(p.records, line), append(p.seqs, rec.Seq)
		p.next = psych.Pos{Seq: rec.Seq}
		_, p.closed = rec.Event.(*psych.ExchangeClosed)
	}
	// At its head a log says where that is, so that reading on from there costs
	// less.
	if !p.more && p.next.Mark == "" && p.next.Seq > 0 {
		switch head, err := h.store.Head(r.Context(), key); {
		case err != nil:
			return nil, ofRun(err)
		case head.Seq == p.next.Seq:
			p.next = head
		}
	}
	return p, nil
}
