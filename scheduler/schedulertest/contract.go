//nolint:thelper,tparallel // these are the tests themselves: a failure should name their own line; who runs them is parallel
package schedulertest

import (
	"testing"

	"weir/scheduler"
)

// Test checks that the harness's scheduler keeps the contract of
// scheduler.Scheduler and what the harness says that it can beyond.
func Test(t *testing.T, h Harness) {
	t.Helper()
	always := true
	for _, c := range []struct {
		name     string
		promised bool
		pool     Pool
		test     func(*trial)
	}{
		{"an attempt gets one lease with a target and the body", always, one(2), oneLease},
		{"ending a lease twice frees one place", always, one(2), endTwice},
		{"as many leases as there are places", always, uneven(), places},
		{"a cancelled request leaves the queue and the next one goes", always, one(1), cancelQueued},
		{"a cancel that races with a dispatch leaks nothing", always, one(1), cancelDispatched},
		{"a request that is cancelled before it comes holds nothing", always, one(1), cancelBefore},
		{"a higher band goes first, each in order", always, one(1), strictBands},
		{"a full pool refuses with a reason and a time", always, Pool{Endpoints: endpoints(1, 1), MaxQueued: 3}, poolFull},
		{"a full band refuses while another takes", always, Pool{Endpoints: endpoints(1, 1), MaxBandQueued: 2}, bandFull},
		{"a request waits for the pool's time limit", always, Pool{Endpoints: endpoints(1, 1), TTL: ttl}, timeLimit},
		{"without endpoints the reason says so", always, Pool{TTL: ttl}, noEndpoints},
		{"an endpoint that comes is used by who waits", always, Pool{}, endpointComes},
		{"an endpoint that goes keeps its leases and takes no others", !h.Overshoots, Pool{Endpoints: endpoints(2, 1)}, endpointGoes},
		{"closing refuses who waits and who comes", always, one(1), closing},
		{"a storm of requests, ends and cancels leaves nothing", always, Pool{Endpoints: endpoints(3, 4)}, storm},

		{"no endpoint holds more leases than it may", h.Can.ExactCaps, uneven(), caps},
		{"the least loaded endpoint is taken", h.Can.LeastLoaded, Pool{Endpoints: endpoints(3, 8)}, leastLoaded},
		{"an excluded endpoint is avoided, but better than none", h.Can.Excludes, Pool{Endpoints: endpoints(2, 2)}, excludes},
		{"a full flow refuses while another flow takes", h.Can.FlowCap, Pool{Endpoints: endpoints(1, 1), MaxFlowQueued: 2}, flowFull},
		{"a request's own time limit only shortens the pool's", h.Can.RequestTTL, Pool{Endpoints: endpoints(1, 1), TTL: ttl}, requestLimit},
		{"the flows of a band take turns", h.Can.Turns, one(1), turns},
		{"flows share by weight in tokens", h.Can.Weights, one(1), weights},
		{"the deeper turn of a flow goes first", h.Can.Sessions, one(1), sessions},
		{"deep turns bring a flow no more than its share", h.Can.Sessions && h.Can.Weights, one(1), sessionsShare},
		{"a retry goes to the head of its flow", h.Can.Retries, one(1), retries},
		{"a band gets its minimum share", h.Can.Shares, Pool{Endpoints: endpoints(1, 1), Shares: map[int]float64{0: 0.2}}, shares},
		{"a reservation goes before higher bands until it is held", h.Can.Reservations, one(4), reservations},
		{"an endpoint is taken back for a higher band", h.Can.Eviction, Pool{Endpoints: endpoints(1, 1), Eviction: true}, eviction},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !c.promised {
				t.Skip("not promised by this scheduler")
			}
			h.Run(t, func(t *testing.T) {
				trial := begin(t, h, c.pool)
				c.test(trial)
				trial.empty()
			})
		})
	}
}

// request is the i-th of a flow; its id begins with what it is called.
func request(name, fairnessID string, band, i int) scheduler.Request {
	id := name + "/" + string(rune('0'+i/100%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))
	return scheduler.Request{
		ID:          id,
		Flow:        scheduler.Flow{FairnessID: fairnessID, Band: band},
		Body:        []byte(`{"id":"` + id + `","messages":[{"content":"hello","role":"user"}],"model":"m"}`), // a picker reads it
		InputTokens: 100, OutputTokens: 100,
	}
}

func completed() scheduler.Outcome {
	return scheduler.Outcome{Result: scheduler.Completed, InputTokens: 100, OutputTokens: 100}
}

// endpoints returns n endpoints with so many leases each.
func endpoints(n, maxConcurrency int) []scheduler.Endpoint {
	all := make([]scheduler.Endpoint, n)
	for i := range all {
		id := string(rune('a' + i))
		all[i] = scheduler.Endpoint{ID: id, URL: "http://" + id + ".test", MaxConcurrency: maxConcurrency}
	}
	return all
}

func one(places int) Pool { return Pool{Endpoints: endpoints(1, places)} }

func uneven() Pool {
	p := Pool{Endpoints: endpoints(2, 1)}
	p.Endpoints[1].MaxConcurrency = 3
	return p
}
