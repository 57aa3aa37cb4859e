package epp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/extproc"
)

func TestAProxysExchangeRunsAsWithAnEndpointPicker(t *testing.T) {
	t.Parallel()
	s, w := watched(t)
	p := s.open(t)
	body := `{"model":"m","stream":true,"max_tokens":50,"messages":["` + strings.Repeat("x", 200_000) + `"]}`
	p.request(body, 30_000,
		"x-request-id", "r1", extproc.FairnessID, "acme", extproc.ObjectiveOld, "gold", extproc.SessionID, "s1",
		extproc.QueueTTL, "1500ms", extproc.WantedTTFT, "250", "authorization", "Bearer secret")
	destination, sent := p.routed()
	if destination != "10.0.0.1:8000" && destination != "model.test:443" {
		t.Errorf("destination %q", destination)
	}
	if sent != body {
		t.Errorf("the body came back with %d of %d bytes, or changed", len(sent), len(body))
	}

	p.responseHeaders(":status", "200", "content-type", "text/event-stream")
	h := p.recv().GetResponseHeaders().GetResponse().GetHeaderMutation()
	if extproc.GetSet(h, extproc.QueueMilliseconds) == "" || len(h.GetSetHeaders()) != 1 {
		t.Errorf("response headers are changed by %v, want the queue's time alone", h)
	}
	for _, piece := range []string{"data: {\"choices\":[{}]}\n", "\ndata: {\"usage\":{\"prompt_tokens\":9,\"comple", "tion_tokens\":4}}\n\n"} {
		p.responseBody(piece, false)
		if got := p.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(got.GetBody()) != piece || got.GetEndOfStream() {
			t.Errorf("piece %q came back as %v", piece, got)
		}
	}
	p.responseBody("", true)
	if got := p.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); !got.GetEndOfStream() {
		t.Errorf("the end came back as %v", got)
	}
	s.rests(t, 0, 0) // the end of the answer is enough
	if err := p.end(); err != nil {
		t.Error(err)
	}

	r, o := w.first(t)
	if want := (scheduler.Outcome{Result: scheduler.Completed, InputTokens: 9, OutputTokens: 4}); o != want {
		t.Errorf("outcome %+v, want %+v", o, want)
	}
	want := scheduler.Request{
		ID: "r1", Path: "/v1/chat/completions", Flow: scheduler.Flow{FairnessID: "acme", Band: 100}, Session: "acme/s1", Model: "m", Streams: true,
		OutputTokens: 50, TTL: 1500 * time.Millisecond, TTFT: 250 * time.Millisecond, InputTokens: r.InputTokens,
	}
	r.Body, r.Prompt = nil, nil
	if diff := cmp.Diff(want, r, cmp.AllowUnexported(scheduler.Request{})); diff != "" || r.InputTokens < 50_000 {
		t.Errorf("the scheduler was asked for (-want +got)\n%s", diff)
	}
	if w.progress[1].Kind != scheduler.FirstToken || w.progress[2].OutputTokens != 4 {
		t.Errorf("progress %+v", w.progress)
	}
}

func TestHowAnAnswerEndsIsToldByItsStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]scheduler.Result{
		"200": scheduler.Completed, "": scheduler.Completed, "400": scheduler.CallerFault, "404": scheduler.CallerFault,
		"429": scheduler.Overloaded, "503": scheduler.Overloaded, "500": scheduler.EndpointFault, "502": scheduler.EndpointFault,
	} {
		t.Run("status "+status, func(t *testing.T) {
			t.Parallel()
			s, w := watched(t)
			p := s.open(t)
			p.chat("r")
			p.routed()
			p.responseHeaders(":status", status)
			p.responseBody(`{}`, true)
			if err := p.end(); err != nil {
				t.Error(err)
			}
			if _, o := w.first(t); o.Result != want {
				t.Errorf("result %v, want %v", o.Result, want)
			}
		})
	}
}

func TestEveryWayToLeaveEndsTheLease(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*proxy){
		"the stream is cut once it runs":   func(p *proxy) { p.cancel() },
		"the stream is closed":             func(p *proxy) { _ = p.end() },
		"the stream is closed in the body": func(p *proxy) { p.responseHeaders(":status", "200"); p.responseBody("x", false); _ = p.end() },
		"nonsense is sent":                 func(p *proxy) { p.chat("again") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w := watched(t)
			p := s.open(t)
			p.chat("r")
			p.routed()
			leave(p)
			if _, o := w.first(t); o.Result != scheduler.Abandoned {
				t.Errorf("result %v, want it abandoned", o.Result)
			}
			s.rests(t, 0, 0)
		})
	}
}

func TestWhoLeavesTheQueueIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*proxy){
		"by cutting the stream":     func(p *proxy) { p.cancel() },
		"by closing its side of it": func(p *proxy) { _ = p.stream.CloseSend() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, 1, scheduler.Config{}, epp.Config{})
			running, waiting := s.open(t), s.open(t)
			running.chat("a")
			running.routed()
			waiting.chat("b")
			s.rests(t, 1, 1)
			leave(waiting)
			s.rests(t, 1, 0)
			running.cancel()
		})
	}
}

func TestWhatCantBeReadIsRefusedAndHoldsNothing(t *testing.T) {
	t.Parallel()
	chat := func(p *proxy) { p.chat("r") }
	for _, c := range []struct {
		name string
		cfg  epp.Config
		send func(*proxy)
		want refusedAs
	}{
		{"no JSON", epp.Config{}, func(p *proxy) { p.request(`{"model"`, 10) }, refusedAs{400, "invalid_request_error", "", "", ""}},
		{"a body beyond the bound", epp.Config{MaxBody: 20}, chat, refusedAs{413, "invalid_request_error", "", "", ""}},
		{"more than all bodies may be", epp.Config{MaxBodies: 20}, chat, refusedAs{429, "rate_limit_error", "rejected-saturated", "pool_full", "1"}},
		{"too many headers", epp.Config{}, func(p *proxy) { p.chat("r", strings.Split(strings.Repeat("x,y,", 200), ",")[:400]...) }, refusedAs{400, "invalid_request_error", "", "", ""}},
		{"a long id", epp.Config{}, func(p *proxy) { p.chat(strings.Repeat("r", 300)) }, refusedAs{400, "invalid_request_error", "", "", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, 1, scheduler.Config{}, c.cfg)
			p := s.open(t)
			c.send(p)
			if got := p.refused(); got != c.want {
				t.Errorf("refused as %+v, want %+v", got, c.want)
			}
			if err := p.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBodiesOfRequestsThatRunAreNotCounted(t *testing.T) {
	t.Parallel()
	s := serve(t, 9, scheduler.Config{}, epp.Config{MaxBodies: 40}) // one chat has 27 bytes
	for _, id := range []string{"a", "b", "c"} {
		p := s.open(t)
		p.chat(id)
		p.routed()
		defer p.cancel()
		s.rests(t, int(id[0]-'a')+1, 0)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, 9, scheduler.Config{}, epp.Config{MaxStreams: 1})
	first := s.open(t)
	first.chat("a")
	first.routed()
	second := s.open(t)
	second.chat("b")
	if got := second.refused(); got.reason != string(scheduler.PoolFull) {
		t.Errorf("a second stream got %v: it is load, and no fault of the scheduler", got)
	}
	first.cancel()
}

func TestAnIdThatIsLiveIsNotTakenTwice(t *testing.T) {
	t.Parallel()
	s := serve(t, 2, scheduler.Config{}, epp.Config{})
	first, second := s.open(t), s.open(t)
	first.chat("same")
	first.routed()
	second.chat("same")
	if got := second.refused(); got.status != 409 {
		t.Errorf("refused as %+v", got)
	}
	if err := first.end(); err != nil {
		t.Error(err)
	}
	third := s.open(t)
	third.chat("same")
	third.routed()
	third.cancel()
}

func TestASubsetIsKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		hint []any
		want string // a destination, or a refusal's reason
	}{
		{"one endpoint, whatever its port", []any{"model.test:1"}, "model.test:443"},
		{"none at all", nil, "rejected-no-endpoints"},
		{"unknown ones", []any{"10.9.9.9:8000"}, "rejected-no-endpoints"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, _ := watched(t)
			p := s.open(t)
			p.begin(hint(c.hint...), "x-request-id", "r")
			for piece, last := range extproc.Chunks([]byte(`{}`), 1) {
				p.send(bodyPiece(piece, last))
			}
			if strings.HasPrefix(c.want, "rejected") {
				if got := p.refused(); got.dropped != c.want {
					t.Errorf("refused as %+v", got)
				}
				return
			}
			if got, _ := p.routed(); got != c.want {
				t.Errorf("went to %q", got)
			}
			other := s.open(t) // what the subset allows is full, though the pool isn't
			other.begin(hint(c.hint...), "x-request-id", "other")
			other.send(bodyPiece([]byte(`{}`), true))
			if got := other.refused(); got.dropped != "rejected-saturated" {
				t.Errorf("the second was refused as %+v", got)
			}
			p.cancel()
		})
	}
}

func TestARequestWithoutABodyIsPlacedToo(t *testing.T) {
	t.Parallel()
	s, w := watched(t)
	p := s.open(t)
	p.send(bare())
	m := p.recv()
	if extproc.GetSet(m.GetRequestHeaders().GetResponse().GetHeaderMutation(), extproc.Destination) == "" {
		t.Fatalf("got %v", m)
	}
	p.responseHeaders(":status", "200")
	p.recv()
	p.responseBody(`{"data":[]}`, true)
	if err := p.end(); err != nil {
		t.Error(err)
	}
	if _, o := w.first(t); o.Result != scheduler.Completed {
		t.Errorf("ended as %+v", o)
	}
}
