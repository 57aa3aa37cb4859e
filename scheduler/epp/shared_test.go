package epp_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"weir/scheduler"
	"weir/scheduler/llmd"
)

// queueOf is two gateways before a pool of one place, which is taken, and in
// which order what they send is let through.
type queueOf struct {
	*testing.T

	gateways []*llmd.Client
	mu       sync.Mutex
	order    []string
	all      sync.WaitGroup
}

func (q *queueOf) send(gateway int, r scheduler.Request) {
	q.Helper()
	q.all.Go(func() {
		l, err := q.gateways[gateway].Schedule(q.Context(), r)
		if err != nil {
			q.Error(err)
			return
		}
		q.mu.Lock()
		q.order = append(q.order, r.ID)
		q.mu.Unlock()
		l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 100, OutputTokens: 100})
	})
	rest()
}

func asked(id, tenant string, weight int) scheduler.Request {
	return scheduler.Request{
		ID: id, Flow: scheduler.Flow{FairnessID: tenant}, Weight: weight, Body: []byte(`{}`), InputTokens: 100, OutputTokens: 100,
	}
}

func TestTenantsOfTwoGatewaysWaitInOneOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		send func(*queueOf)
		want func(order []string) string // what is wrong
	}{
		{"a tenant's requests go as they came, whichever gateway they came through", func(q *queueOf) {
			for i := range 10 {
				q.send(i%2, asked("acme/"+strconv.Itoa(i), "acme", 1))
			}
		}, func(order []string) string {
			if !slices.IsSorted(order) {
				return "not in the order in which they came"
			}
			return ""
		}},
		{"a flood through one gateway doesn't hold up another tenant at the other", func(q *queueOf) {
			for i := range 20 {
				q.send(0, asked("flood/"+strconv.Itoa(i), "flood", 1))
			}
			for i := range 3 {
				q.send(1, asked("few/"+strconv.Itoa(i), "few", 1))
			}
		}, func(order []string) string {
			if at := slices.Index(order, "few/2"); at > 6 {
				return "the third of the few went as number " + strconv.Itoa(at)
			}
			return ""
		}},
		{"weights count across gateways", func(q *queueOf) {
			for i := range 20 {
				q.send(0, asked("heavy/"+strconv.Itoa(i), "heavy", 3))
				q.send(1, asked("light/"+strconv.Itoa(i), "light", 1))
			}
		}, func(order []string) string {
			heavy := 0
			for _, id := range order[:16] {
				if strings.HasPrefix(id, "heavy") {
					heavy++
				}
			}
			if heavy < 11 || heavy > 13 {
				return strconv.Itoa(heavy) + " of the first 16 are of the tenant with three quarters of the weight"
			}
			return ""
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				near := scheduler.New(scheduler.Config{}, nil)
				t.Cleanup(near.Close)
				near.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test", MaxConcurrency: 1}})
				near.SetHealth("a", scheduler.Healthy)
				q := &queueOf{T: t, gateways: connect(t, near, 2)}
				first, err := q.gateways[0].Schedule(t.Context(), asked("first", "other", 1))
				if err != nil {
					t.Fatal(err)
				}
				c.send(q)
				first.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 1, OutputTokens: 1})
				q.all.Wait()
				rest()
				if wrong := c.want(q.order); wrong != "" {
					t.Errorf("%s: %v", wrong, q.order)
				}
			})
		})
	}
}
