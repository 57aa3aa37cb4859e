package extproc_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

func TestFactsComeThroughTheHeadersUnchanged(t *testing.T) {
	t.Parallel()
	micro := func(t *rapid.T, label string, low int64) time.Duration {
		return time.Duration(rapid.Int64Range(low, 1<<40).Draw(t, label)) * time.Microsecond
	}
	rapid.Check(t, func(t *rapid.T) {
		text, number := rapid.StringN(0, 40, 100), rapid.IntRange(0, 1<<40)
		want := extproc.Facts{
			Band: rapid.IntRange(-1<<30, 1<<30).Draw(t, "band"), Weight: number.Draw(t, "weight"),
			Session: text.Draw(t, "session"), Turn: number.Draw(t, "turn"), Affinity: text.Draw(t, "affinity"),
			Model: text.Draw(t, "model"), CacheSalt: text.Draw(t, "salt"),
			InputTokens: number.Draw(t, "input"), OutputTokens: number.Draw(t, "output"),
			Retry: rapid.Bool().Draw(t, "retry"), TTFT: micro(t, "ttft", 0), Reserved: number.Draw(t, "reserved"),
			TTL: micro(t, "ttl", -1<<40), Streams: rapid.Bool().Draw(t, "streams"),
			Revision: text.Draw(t, "revision"),
		}
		if want.Retry {
			want.Waited = micro(t, "waited", 0)
		}
		for range rapid.IntRange(0, 64).Draw(t, "excluded") {
			want.Exclude = append(want.Exclude, rapid.StringN(1, 10, 40).Draw(t, "endpoint"))
		}
		var h extproc.Headers
		want.Encode(&h)
		got, ok, err := extproc.DecodeFacts(h.Map())
		if err != nil || !ok {
			t.Fatalf("ok %v, error %v", ok, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Two machines' clocks differ; what a request has waited doesn't.
func TestARetryKeepsItsWaitAcrossMachinesWhoseClocksDiffer(t *testing.T) {
	t.Parallel()
	sender := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	receiver := sender.Add(-3 * time.Hour)
	sent := scheduler.Request{ID: "a.2", QueuedAt: sender.Add(-5 * time.Second)}
	facts := extproc.FactsOf(&sent, sender)
	var got scheduler.Request
	facts.Request(&got, receiver)
	if waited := receiver.Sub(got.QueuedAt); waited != 5*time.Second {
		t.Errorf("the receiver sees a wait of %v", waited)
	}
}

func TestARequestOfAnotherGatewayHasNoFacts(t *testing.T) {
	t.Parallel()
	var h extproc.Headers
	h.Add(extproc.BandHeader, "100")
	h.Add(extproc.FairnessID, "somebody")
	if f, ok, err := extproc.DecodeFacts(h.Map()); ok || err != nil || f.Band != 0 {
		t.Errorf("facts %+v, ok %v, error %v: without a version nothing else is meant", f, ok, err)
	}
}

func TestReportsAndOutcomesComeThroughUnchanged(t *testing.T) {
	t.Parallel()
	for _, want := range []scheduler.Progress{
		{Kind: scheduler.HeadersReceived}, {Kind: scheduler.FirstToken, OutputTokens: 1}, {Kind: scheduler.EventReceived, OutputTokens: 123456},
	} {
		got, err := extproc.ReadReport(extproc.AppendReport(nil, want))
		if err != nil || !cmp.Equal(want, got) {
			t.Errorf("%+v came as %+v, error %v", want, got, err)
		}
	}
	for _, result := range []scheduler.Result{scheduler.Completed, scheduler.EndpointFault, scheduler.CallerFault, scheduler.Abandoned, scheduler.Overloaded} {
		want := scheduler.Outcome{Result: result, InputTokens: 7, CachedTokens: 8, OutputTokens: 9, Reached: result == scheduler.EndpointFault}
		var h extproc.Headers
		extproc.EncodeOutcome(&h, want)
		if got, err := extproc.DecodeOutcome(h.Map()); err != nil || got != want {
			t.Errorf("%+v came as %+v, error %v", want, got, err)
		}
	}
}
