package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
)

func decided(change func(*gateway.Decision)) gateway.Decision {
	d := gateway.Decision{
		Request: "req_1.1", FairnessID: "flow_x", Band: -10, Model: "engine-name",
		EnteredAt: time.Date(2026, 11, 5, 6, 7, 8, 9e6, time.UTC), Waited: 2345 * time.Millisecond, Ahead: 6, Queued: 14,
		Held: scheduler.HeldByCeiling, HeldSaturation: 0.62, HeldCeiling: 0.5, Saturation: 0.48, Ceiling: 0.5,
		InputTokens: 2000, CachedTokens: 1200, Considered: 3, Left: map[string]int{"unhealthy": 1, "decode-filter": 2},
		Candidates: []scheduler.Candidate{
			{Endpoint: "a", Score: 4.25, CachedTokens: 1200, Live: 13, Scores: []scheduler.Score{{Scorer: "prefix-cache-scorer", Value: 0.6, Weight: 3}, {Scorer: "queue-scorer", Value: 1, Weight: 2}}},
			{Endpoint: "b", Score: 2, Live: 2, Scores: []scheduler.Score{{Scorer: "queue-scorer", Value: 1, Weight: 2}}},
		},
		Endpoint: "a", Why: "the sentence",
		Pool: "main", BandName: "batch", Models: []string{"org/chat", "org/chat-fast"},
	}
	if change != nil {
		change(&d)
	}
	return d
}

func TestExplanationsAreForPeople(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		e    explanation
		want string
	}{
		{
			"a request that waited and was picked for",
			explanation{Replica: "http://r1", Decisions: []gateway.Decision{decided(nil)}},
			`req_1.1 at http://r1: the sentence
  asked for   org/chat, org/chat-fast in pool main, band batch (-10), as flow_x
  came        2026-11-05 06:07:08.009: 14 waited in the pool, about 6 before it
  waited      2.35s, at the end because the pool was as full as the band may make it, and what was left is kept for higher ones
  held        with the pool at 0.62, which the band might fill to 0.50
  decided     with the pool at 0.48, which the band might fill to 0.50
  went to     a, the best of 3 that could take it
  left out    2 by decode-filter, 1 by unhealthy
  CANDIDATE  SCORE  CACHED        RUNNING  prefix-cache-scorer x3  queue-scorer x2
  a          4.250  1200 of 2000  13       0.600                   1.000
  b          2.000  0 of 2000     2        -                       1.000
`,
		},
		{
			"one that was refused, of a model that is gone",
			explanation{Replica: "http://r1", Decisions: []gateway.Decision{decided(func(d *gateway.Decision) {
				d.Refused, d.Candidates, d.Left, d.Endpoint, d.Held = scheduler.QueueTimeout, nil, nil, "", scheduler.HeldByEndpoints
				d.Models, d.BandName = nil, ""
			})}},
			`req_1.1 at http://r1: the sentence
  asked for   engine-name in pool main, band -10, as flow_x
  came        2026-11-05 06:07:08.009: 14 waited in the pool, about 6 before it
  waited      2.35s, at the end because no endpoint that may take it had room
  held        with the pool at 0.62, which the band might fill to 0.50
  decided     with the pool at 0.48, which the band might fill to 0.50
  refused     its time in the queue was up
`,
		},
		{
			"one that didn't wait",
			explanation{Replica: "http://r1", Decisions: []gateway.Decision{decided(func(d *gateway.Decision) {
				d.HeldSaturation, d.HeldCeiling = 0, 0
				d.Held, d.Waited, d.Queued, d.Ahead, d.Considered, d.Candidates, d.Left = "", 0, 0, 0, 1, nil, nil
			})}},
			`req_1.1 at http://r1: the sentence
  asked for   org/chat, org/chat-fast in pool main, band batch (-10), as flow_x
  came        2026-11-05 06:07:08.009: 0 waited in the pool, about 0 before it
  waited      not at all: nothing waited and an endpoint had room
  decided     with the pool at 0.48, which the band might fill to 0.50
  went to     a, the only one that could take it
`,
		},
		{
			"one that waits",
			explanation{Replica: "http://r2", Waiting: &gateway.Waiting{
				ID: "req_2", Model: "org/chat", Pool: "main", Band: "standard", Waited: 1500 * time.Millisecond,
				Position: &scheduler.Position{Ahead: 4, Expected: 700 * time.Millisecond, Hold: scheduler.HeldByNoEndpoint},
			}},
			`req_2 waits at http://r2
  asked for   org/chat in pool main, band standard
  waits       1.5s so far, with about 4 before it: the pool had no endpoint that works
  expected    to go in 700ms at the present pace
`,
		},
		{
			"one that waits at a scheduler elsewhere",
			explanation{Replica: "http://r2", Waiting: &gateway.Waiting{ID: "req_2", Model: "m", Pool: "p", Band: "b", Waited: 20 * time.Millisecond}},
			`req_2 waits at http://r2
  asked for   m in pool p, band b
  waits       20ms so far
`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			if err := printExplanations(&out, []explanation{tt.e}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAllReplicasAreAsked(t *testing.T) {
	t.Parallel()
	replica := func(answer any, status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/ops/v1/decisions" || r.URL.Query().Get("request") != "req_1&x=y" {
				t.Errorf("asked %s as %q", r.URL, r.Header.Get("Authorization"))
			}
			if status == http.StatusFound {
				w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			}
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(answer)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	first := replica(explanation{Decisions: []gateway.Decision{decided(nil)}}, http.StatusOK)
	second := replica(explanation{Waiting: &gateway.Waiting{ID: "req_1"}}, http.StatusOK)
	known, failed := askAll(t.Context(), []string{
		first, replica(explanation{}, http.StatusOK), replica(nil, http.StatusUnauthorized), replica(nil, http.StatusNotFound),
		replica("nonsense", http.StatusOK), replica(nil, http.StatusFound), second,
	}, "secret", "req_1&x=y")
	if len(known) != 2 || known[0].Replica != first || len(known[0].Decisions) != 1 || known[1].Replica != second || known[1].Waiting == nil {
		t.Errorf("known: %+v", known)
	}
	if diff := cmp.Diff(decided(nil), known[0].Decisions[0]); diff != "" {
		t.Errorf("a decision changed on its way (-want +got)\n%s", diff)
	}
	want := []string{"refuses the token", "404 Not Found", "read its answer", "302 Found"}
	if len(failed) != len(want) {
		t.Fatalf("failed: %v", failed)
	}
	for i, err := range failed {
		if !strings.Contains(err.Error(), want[i]) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v, want %s", err, want[i])
		}
	}
}

func TestOpsAddresses(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"127.0.0.1:9090": "http://127.0.0.1:9090", ":9090": "http://127.0.0.1:9090", "0.0.0.0:1": "http://127.0.0.1:1",
		"[::]:9": "http://127.0.0.1:9", "ops.internal:9090": "http://ops.internal:9090",
	} {
		if got, err := opsAddresses(&Config{OpsAddr: addr}); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, %v", addr, got, err)
		}
	}
	got, err := parseOpsURLs(" 10.0.0.3:9090, https://ops.example/ ,http://[::1]:9")
	if diff := cmp.Diff([]string{"http://10.0.0.3:9090", "https://ops.example", "http://[::1]:9"}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{"ftp://a", "http://", "http://a?token=x", "http://u:p@a", "http://a/#b"} {
		if got, err := parseOpsURLs(bad); err == nil {
			t.Errorf("%s is taken as %v", bad, got)
		}
	}
}
