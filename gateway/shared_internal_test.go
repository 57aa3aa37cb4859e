package gateway

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/tenants"
)

func TestWhereASharedSchedulerMaySend(t *testing.T) {
	t.Parallel()
	p := &catalogue.Pool{Scheduler: catalogue.Scheduling{Kind: catalogue.KindLLMD, Shared: catalogue.Shared{
		AllowedDestinations: []string{"10.20.0.0/16", "fd00::/8", "engine-7:8000"}, Scheme: "https",
	}}}
	var known feed
	known.Embedded = scheduler.New(scheduler.Config{}, time.Now)
	known.caches = newCaches(slog.New(slog.DiscardHandler), known.Embedded)
	known.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://10.20.0.1:8000"}, {ID: "b", URL: "https://b.test"}, {ID: "c", URL: "http://[::1]:9"}})
	d := newDestinations(p, &known)
	for place, want := range map[string]scheduler.Target{
		"10.20.0.1:8000":           {Endpoint: "a", URL: "http://10.20.0.1:8000"},
		"b.test:443":               {Endpoint: "b", URL: "https://b.test"},
		"[::1]:9":                  {Endpoint: "c", URL: "http://[::1]:9"},
		"10.20.255.7:80":           {Endpoint: "10.20.255.7:80", URL: "https://10.20.255.7:80"},
		"[fd00::1]:80":             {Endpoint: "[fd00::1]:80", URL: "https://[fd00::1]:80"},
		"[::ffff:10.20.0.9]:80":    {Endpoint: "[::ffff:10.20.0.9]:80", URL: "https://[::ffff:10.20.0.9]:80"},
		"engine-7:8000":            {Endpoint: "engine-7:8000", URL: "https://engine-7:8000"},
		"engine-7:8001":            {},
		"b.test:80":                {},
		"10.21.0.1:80":             {},
		"10.20.0.1:0":              {},
		"10.20.0.1":                {},
		"[fd00::1%eth0]:80":        {},
		"169.254.169.254:80":       {},
		"127.0.0.1:8000":           {},
		"10.20.0.1:80/x":           {},
		"10.20.0.1:80@evil.test":   {},
		"evil.test#10.20.0.1:80":   {},
		"10.20.0.1:80 evil.test:1": {},
		"":                         {},
	} {
		got, ok := d.find(place)
		if ok != (want.URL != "") || got.Endpoint != want.Endpoint || got.URL != want.URL {
			t.Errorf("%q: %+v, %v; want %+v", place, got, ok, want)
		}
	}
	known.SetEndpoints(nil)
	if _, ok := d.find("b.test:443"); ok {
		t.Error("an endpoint that has left is still a destination")
	}
}

// remoteThat is a shared scheduler that answers in one way; only Schedule counts.
type remoteThat func(scheduler.Request) error

func (r remoteThat) Schedule(_ context.Context, asked scheduler.Request) (scheduler.Lease, error) {
	return nil, r(asked)
}
func (remoteThat) Close() {}
func (remoteThat) Wait()  {}

func TestWhoStandsInTakesOverAsTheRequestStands(t *testing.T) {
	t.Parallel()
	undecided := &scheduler.Refusal{Reason: scheduler.NoEndpoints, Err: llmd.ErrNoScheduler}
	for name, c := range map[string]struct {
		lost, ttl, want time.Duration // the wait for a scheduler; the request's limit, and what is left of it
	}{
		"nobody answers, which is known":  {0, 5 * time.Second, 5 * time.Second},
		"a scheduler was lost meanwhile":  {2 * time.Second, 5 * time.Second, 3 * time.Second},
		"for as long as it wants to wait": {5 * time.Second, 5 * time.Second, -1},
		"without a limit":                 {2 * time.Second, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got scheduler.Request
				began := time.Now()
				full := &scheduler.Refusal{Reason: scheduler.PoolFull}
				q := &sharedQueue{idle: make(chan struct{}), objectives: &objectives{}}
				q.remote = remoteThat(func(scheduler.Request) error { synctest.Sleep(c.lost); return undecided })
				q.standIn = remoteThat(func(r scheduler.Request) error { got = r; return full })
				before := &sharedQueue{idle: make(chan struct{}), standIn: remoteThat(nil)}
				before.retire(q) // whoever still asks it is asked for the same plan
				if _, err := (standingIn{before}).Schedule(t.Context(), scheduler.Request{ID: "r.1", TTL: c.ttl}); !errors.Is(err, full) {
					t.Fatalf("got %v", err)
				}
				if got.TTL != c.want || got.QueuedAt.IsZero() != (c.lost == 0) || c.lost > 0 && !got.QueuedAt.Equal(began) {
					t.Errorf("it was asked with %v left, queued at %v; want %v, %v", got.TTL, got.QueuedAt, c.want, began)
				}
			})
		})
	}
}

func TestWhatARefusalOfAnEndpointPickerMeans(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status          int
		reason, message string
		want            Cause
	}{
		{429, "rejected-saturated", "", PoolFull},
		{429, "rejected-ttl-expired", "", QueueTimeout},
		{503, "rejected-ttl-expired", "", QueueTimeout},
		{503, "rejected-no-endpoints", "", NoEndpoint},
		{503, "rejected-shutting-down", "", ShuttingDown},
		{503, "rejected-context-cancelled", "", ShuttingDown},
		{500, "rejected-internal", "", NoEndpoint},
		{429, "evicted", "request evicted by flow control", Evicted},
		{429, "evicted-queue-pressure", "", Evicted},
		{500, "", "inference error: Internal - request cannot be admitted: probability", Shed},
		{429, "", "system saturated, sheddable request dropped", Shed},
		{429, "", "an engine's own limit", ""},
		{503, "", "no healthy upstream", ""},
		{400, "", "no model", ""},
	} {
		if got := droppedCause(test.status, test.reason, test.message); got != test.want {
			t.Errorf("%d %q %q is %q, want %q", test.status, test.reason, test.message, got, test.want)
		}
	}
}

// standIn is a scheduler that says by its refusal that it was asked.
type standIn struct{}

// Schedule implements scheduler.Scheduler.
func (standIn) Schedule(context.Context, scheduler.Request) (scheduler.Lease, error) {
	return nil, &scheduler.Refusal{Reason: scheduler.PoolFull}
}

// Who comes with a queue in hand that has another in its place is served as the
// plan says there, too.
func TestAPlanKeepsItsStandInWhereAQueueIsReplaced(t *testing.T) {
	t.Parallel()
	silent := func() *sharedQueue {
		return &sharedQueue{idle: make(chan struct{}), fault: errors.New("it doesn't answer"), standIn: standIn{}}
	}
	before := silent()
	before.retire(silent())
	for name, tt := range map[string]struct {
		plan tenants.Plan
		want scheduler.Reason
	}{
		"one that wants a stand-in": {tenants.Plan{WhenNoScheduler: tenants.StandIn}, scheduler.PoolFull},
		"one that doesn't say":      {tenants.Plan{}, scheduler.NoEndpoints},
	} {
		_, err := queueFor(before, &tt.plan).Schedule(t.Context(), scheduler.Request{ID: "req_1.1"})
		if refusal, ok := errors.AsType[*scheduler.Refusal](err); !ok || refusal.Reason != tt.want {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}
