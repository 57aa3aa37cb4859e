package responses

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/gateway"
	"weir/tenants"
)

// memory is a Store of this test's process.
type memory struct {
	records map[string]*Record
	chats   []*ChatRecord
}

func (m *memory) History(_ context.Context, o Owner, id string) (*History, error) {
	r := m.records[id]
	if r == nil || r.Owner != o {
		return nil, ErrNotFound
	}
	h := &History{Root: r.Root, Turn: r.Turn + 1, Status: r.Status}
	if r.Previous != "" {
		before, err := m.History(context.Background(), o, r.Previous)
		if err != nil {
			return nil, err
		}
		h.Items = before.Items
	}
	h.Items = append(append(h.Items, r.Input...), r.Output...)
	return h, nil
}

func (m *memory) Talk(context.Context, Owner, string) (*History, error) { return nil, ErrNotFound }

func (m *memory) Item(_ context.Context, o Owner, id string) (Item, error) {
	for _, r := range m.records {
		for _, it := range append(r.Input, r.Output...) {
			if r.Owner == o && it.ID == id {
				return it, nil
			}
		}
	}
	return Item{}, ErrNotFound
}

func (m *memory) SaveChat(_ context.Context, r *ChatRecord) (func(*pgx.Batch), error) {
	m.chats = append(m.chats, r)
	return func(*pgx.Batch) {}, nil
}

func (m *memory) Save(_ context.Context, r *Record) (func(*pgx.Batch), error) {
	m.records[r.ID] = r
	return func(*pgx.Batch) {}, nil
}

// script is an Engine that answers with events and then ends as it is told.
type script struct {
	events  []string
	failure *gateway.Error
	calls   []gateway.Call
	ended   string // the document that the engine gave; empty: a stream
}

func (e *script) Run(ctx context.Context, c gateway.Call, sink gateway.Sink) error {
	e.calls = append(e.calls, c)
	if e.failure != nil && len(e.events) == 0 {
		return e.failure
	}
	_ = sink.Begin(ctx, gateway.Head{Tier: tenants.TierDefault})
	_ = sink.Send(ctx, []byte(": keepalive\n\n"))
	for _, ev := range e.events {
		_ = sink.Send(ctx, []byte("data: "+ev+"\n\n"))
	}
	if c.Ended != nil && e.failure == nil {
		var document []byte
		if e.ended != "" {
			document = []byte(e.ended)
		}
		c.Ended(document, []byte(`{"prompt_tokens":1}`))
	}
	if c.Effect != nil {
		if _, err := c.Effect(ctx, e.failure); err != nil {
			return err
		}
	}
	if e.failure != nil {
		sink.Fail(ctx, e.failure)
		return e.failure
	}
	return sink.Send(ctx, []byte("data: [DONE]\n\n"))
}

func (e *script) CountTokens(_ context.Context, c gateway.Call) (int64, error) {
	e.calls = append(e.calls, c)
	return int64(len(c.Fields)), nil
}

// page is a Sink that keeps what it is sent.
type page struct {
	head   gateway.Head
	body   bytes.Buffer
	failed error
}

func (p *page) Begin(_ context.Context, h gateway.Head) error { p.head = h; return nil }
func (p *page) Send(_ context.Context, b []byte) error        { p.body.Write(b); return nil }
func (p *page) Fail(_ context.Context, err error)             { p.failed = err }

type desk struct {
	service *Service
	engine  *script
	store   *memory
}

func newDesk(t *testing.T, engine *script) *desk {
	t.Helper()
	sealer, err := NewSealer([]byte("secret of this test"))
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{engine: engine, store: &memory{records: map[string]*Record{}}}
	d.service = New(Deps{
		Engine: engine, Store: d.store, Sealer: sealer,
		Check: func(_ context.Context, p *tenants.Principal, body []byte) (gateway.Call, []string, error) {
			return gateway.Call{Principal: p, Operation: gateway.Chat, Fields: body}, nil, nil
		},
		Dialect: func(string) Dialect { return Dialect{} },
		Explain: func(err error) Failure {
			return Failure{Kind: "server_error", Code: "server_error", Message: err.Error()}
		},
		Now: time.Now,
	})
	return d
}

func (d *desk) create(t *testing.T, tenant, request string) (*page, error) {
	t.Helper()
	c, err := ParseCreate([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	p := &page{}
	who := &tenants.Principal{Tenant: tenants.ID(tenant), Project: "prj_1"}
	run, err := d.service.Prepare(t.Context(), Caller{Principal: who, RequestID: "req_1"}, c)
	if err != nil {
		return p, err
	}
	return p, run.Answer(t.Context(), p)
}

func hello() *script {
	return &script{events: []string{delta(`"content":"hello"`), finished("stop"), used}}
}

func TestAChainShowsTheEngineAllEarlierTurns(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	p, err := d.create(t, "ten_a", `{"model":"m","input":"one"}`)
	if err != nil {
		t.Fatal(err)
	}
	first := gjson.ParseBytes(p.body.Bytes())
	if first.Get("status").Str != Completed || first.Get("output.0.content.0.text").Str != "hello" || p.head.Stream {
		t.Fatalf("answer %s", p.body.String())
	}
	p, err = d.create(t, "ten_a", `{"model":"m","input":"two","stream":true,"previous_response_id":"`+first.Get("id").Str+`"}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&oracle{}).read(p.body.Bytes()); err != nil {
		t.Errorf("%v\n%s", err, p.body.String())
	}
	body := gjson.ParseBytes(d.engine.calls[1].Fields)
	if got := body.Get("messages.#.content").Raw; got != `["one","hello","two"]` {
		t.Errorf("the engine was told %s", got)
	}
	if c := d.engine.calls[1]; c.Session != first.Get("id").Str || c.Turn != 2 {
		t.Errorf("session %q turn %d", c.Session, c.Turn)
	}
}

func TestAnothersResponseIsNoResponse(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	p, err := d.create(t, "ten_a", `{"model":"m","input":"one"}`)
	if err != nil {
		t.Fatal(err)
	}
	id := gjson.GetBytes(p.body.Bytes(), "id").Str
	item := gjson.GetBytes(p.body.Bytes(), "output.0.id").Str
	var messages []string
	for _, request := range []string{
		`{"model":"m","input":"x","previous_response_id":"` + id + `"}`,
		`{"model":"m","input":"x","previous_response_id":"` + strings.Replace(id, "resp_", "resp_x", 1) + `"}`,
		`{"model":"m","input":[{"type":"item_reference","id":"` + item + `"}]}`,
		`{"model":"m","input":"x","conversation":"conv_1"}`,
	} {
		_, err := d.create(t, "ten_b", request)
		problem, ok := errors.AsType[*Problem](err)
		if !ok {
			t.Fatalf("%s: error %v, want a *Problem", request, err)
		}
		messages = append(messages, problem.Message)
	}
	if a, b := messages[0], messages[1]; strings.ReplaceAll(a, "resp_", "") != strings.ReplaceAll(b, "resp_x", "") {
		t.Errorf("%q tells more than %q", a, b)
	}
	if len(d.engine.calls) != 1 {
		t.Errorf("the engine was asked %d times", len(d.engine.calls))
	}
}

func TestHowAResponseIsKeptThatHasNoGoodEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		events  []string
		cause   gateway.Cause
		more    string // of the request
		status  string
		payload string // of the record
	}{
		"the engine died":                      {[]string{delta(`"content":"he"`)}, gateway.UpstreamDied, "", Failed, "he"},
		"the caller left":                      {[]string{delta(`"content":"he"`)}, gateway.ClientGone, "", Cancelled, "he"},
		"the caller left after the last token": {[]string{delta(`"content":"hello"`), finished("stop")}, gateway.ClientGone, "", Completed, "hello"},
		"the key was revoked":                  {[]string{delta(`"content":"he"`)}, gateway.KeyRevoked, "", Failed, "he"},
		"the key of a run was revoked":         {[]string{delta(`"content":"he"`)}, gateway.KeyRevoked, `,"background":true`, Cancelled, "he"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, &script{events: tt.events, failure: &gateway.Error{Cause: tt.cause}})
			p, err := d.create(t, "ten_a", `{"model":"m","input":"one","stream":true`+tt.more+`}`)
			if err == nil {
				t.Fatal("no error")
			}
			_, end, _ := strings.Cut(p.body.String(), "event: response."+strings.Replace(tt.status, Cancelled, Incomplete, 1)+"\ndata: ")
			for _, r := range d.store.records {
				if r.Status != tt.status || gjson.GetBytes(r.Object, "status").Str != tt.status {
					t.Errorf("kept as %s %s, want %s", r.Status, r.Object, tt.status)
				}
				if told := gjson.Get(end, "response").Raw; told != string(r.Object) && tt.cause != gateway.ClientGone { // who left is told nothing
					t.Errorf("the stream ends with %s, and kept is %s", told, r.Object)
				}
				if got := gjson.GetBytes(r.Object, "output.0.content.0.text").Str; got != tt.payload {
					t.Errorf("text %q, want %q", got, tt.payload)
				}
			}
			if len(d.store.records) != 1 {
				t.Errorf("%d records", len(d.store.records))
			}
		})
	}
}

func TestWhatIsNotToBeStoredIsNot(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &script{events: []string{delta(`"reasoning":"hm"`), delta(`"content":"hello"`), finished("stop")}})
	p, err := d.create(t, "ten_a", `{"model":"m","input":"one","store":false}`)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.store.records) != 0 {
		t.Error("it was")
	}
	sealed := gjson.GetBytes(p.body.Bytes(), "output.0.encrypted_content").Str
	if text, ok := d.service.deps.Sealer.Open("ten_a", "m", sealed); !ok || text != "hm" {
		t.Errorf("reasoning %q %v", text, ok)
	}
	for _, other := range [][2]string{{"ten_b", "m"}, {"ten_a", "n"}} {
		if _, ok := d.service.deps.Sealer.Open(tenants.ID(other[0]), other[1], sealed); ok {
			t.Errorf("opens for %v", other)
		}
	}
}
