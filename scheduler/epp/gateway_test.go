package epp_test

import (
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/extproc"
)

func facts() extproc.Facts {
	return extproc.Facts{
		Band: 7, Weight: 3, Session: "t/s", Turn: 4, Affinity: "t/a", Model: "engine-m", CacheSalt: "salt", InputTokens: 11, OutputTokens: 12,
		Retry: true, Waited: time.Minute, TTFT: time.Second, Reserved: 13, TTL: -time.Microsecond, Streams: true, Exclude: []string{"f"}, Revision: "r7",
	}
}

func pairsOf(f extproc.Facts) (pairs []string) {
	var h extproc.Headers
	f.Encode(&h)
	for _, v := range h.Map().GetHeaders() {
		pairs = append(pairs, v.GetKey(), extproc.Value(v))
	}
	return pairs
}

func (p *proxy) outcome(o scheduler.Outcome) {
	p.t.Helper()
	var h extproc.Headers
	extproc.EncodeOutcome(&h, o)
	p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{Trailers: h.Map()},
	}})
}

func TestAGatewaysFactsReportsAndOutcomeCount(t *testing.T) {
	t.Parallel()
	s, w := watched(t)
	p := s.open(t, extproc.GatewayKey, "1")
	before := time.Now()
	p.chat("r.2", append(pairsOf(facts()), extproc.FairnessID, "flow")...)
	p.told()
	for _, progress := range []scheduler.Progress{{Kind: scheduler.HeadersReceived}, {Kind: scheduler.FirstToken, OutputTokens: 1}, {Kind: scheduler.EventReceived, OutputTokens: 5}} {
		p.responseBody(string(extproc.AppendReport(nil, progress)), false)
	}
	want := scheduler.Outcome{Result: scheduler.EndpointFault, InputTokens: 1, CachedTokens: 2, OutputTokens: 3}
	p.outcome(want)
	if err := p.end(); err != nil {
		t.Error(err)
	}
	r, o := w.first(t)
	if o != want {
		t.Errorf("outcome %+v, want %+v", o, want)
	}
	if ago := before.Sub(r.QueuedAt); ago < 50*time.Second || ago > 2*time.Minute {
		t.Errorf("queued %v ago by this clock, want a minute", ago)
	}
	got, wanted := extproc.FactsOf(&r, r.QueuedAt.Add(time.Minute)), facts()
	if diff := cmp.Diff(wanted, got); diff != "" || r.Flow.FairnessID != "flow" {
		t.Errorf("flow %+v; facts (-want +got)\n%s", r.Flow, diff)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.progress[len(w.progress)-1]; len(w.progress) < 4 || last.Kind != scheduler.HeadersReceived && last.OutputTokens != 5 {
		t.Errorf("progress %+v", w.progress)
	}
}

// What a gateway sends is longer than what its caller sent: an earlier turn, a
// salt. Refused for that, the call would fail each time.
func TestAGatewaysBodiesAreBoundedByTheirSumAlone(t *testing.T) {
	t.Parallel()
	s := serve(t, 9, scheduler.Config{}, epp.Config{MaxBody: 20, MaxBodies: 40}) // one chat has 27 bytes
	p := s.open(t, extproc.GatewayKey, "1")
	p.chat("r.1", pairsOf(facts())...)
	p.told()
	p.outcome(scheduler.Outcome{})
	if err := p.end(); err != nil {
		t.Error(err)
	}
	p = s.open(t, extproc.GatewayKey, "1")
	p.request(`{"messages":"`+string(make([]byte, 40))+`"}`, 10, pairsOf(facts())...)
	if got := p.refused(); got.reason != string(scheduler.PoolFull) {
		t.Errorf("more than all bodies may be got %+v", got)
	}
}

// A gateway that lost its connection sends the request again, and may be faster
// than the news of the loss.
func TestAGatewaysRequestThatComesAgainTakesThePlaceOfTheLostOne(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"waits", "runs"} {
		t.Run("the lost one "+lost, func(t *testing.T) {
			t.Parallel()
			s := serve(t, 1, scheduler.Config{}, epp.Config{})
			other, first, again := s.open(t, extproc.GatewayKey, "1"), s.open(t, extproc.GatewayKey, "1"), s.open(t, extproc.GatewayKey, "1")
			if lost == "waits" {
				other.chat("other")
				other.told()
			}
			first.chat("same")
			if lost == "waits" {
				s.rests(t, 1, 1)
			} else {
				first.told()
			}
			again.chat("same")
			if lost == "waits" {
				if got := first.refused(); got.dropped != "rejected-context-cancelled" {
					t.Errorf("the lost one was refused as %+v", got)
				}
				s.rests(t, 1, 1)
				other.cancel()
			}
			again.told()
			if err := first.end(); err != nil {
				t.Errorf("the lost one ended with %v", err)
			}
			s.rests(t, 1, 0)
			again.cancel()
		})
	}
}

// Who calls a proxy may send it any header.
func TestFactsOfWhoIsNoGatewayAreNoFacts(t *testing.T) {
	t.Parallel()
	s, w := watched(t)
	p := s.open(t)
	p.chat("r", append(pairsOf(facts()), extproc.FairnessID, "flow")...)
	p.routed()
	if err := p.end(); err != nil {
		t.Error(err)
	}
	r, _ := w.first(t)
	if r.Flow.Band != 0 || r.Weight != 0 || r.Session != "" || r.CacheSalt != "" || r.Model != "m" || r.Reserved != 0 || !r.QueuedAt.IsZero() {
		t.Errorf("a proxy's caller made it %+v", r)
	}
}

func TestAGatewayThatBreaksTheFormIsTold(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*proxy){
		"facts of another version": func(p *proxy) { p.chat("r", "x-weir-facts", "99") },
		"a fact that is no number": func(p *proxy) { p.chat("r", "x-weir-facts", "1", "x-weir-weight", "many") },
		"a report that is none":    func(p *proxy) { p.chat("r"); p.told(); p.responseBody("data: {}", false) },
		"an outcome that is none": func(p *proxy) {
			p.chat("r")
			p.told()
			p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{}})
		},
		"a body before the headers": func(p *proxy) { p.send(bodyPiece(nil, true)) },
		"an end before the body's":  func(p *proxy) { p.begin(nil); _ = p.stream.CloseSend() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := watched(t)
			p := s.open(t, extproc.GatewayKey, "1")
			do(p)
			if err := p.end(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("told %v", err)
			}
			s.rests(t, 0, 0)
		})
	}
}
