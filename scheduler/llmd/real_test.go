package llmd_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppreal"
	"weir/scheduler/schedulertest"
)

// realPort is where the endpoints of a real picker would listen. Nobody does:
// it counts its own requests and reads their load in vain.
const realPort = 9

// realBinary is the real picker that the environment names.
func realBinary(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("EPP_BIN")
	if binary == "" {
		t.Skip("EPP_BIN names no Endpoint Picker: `make test-epp` builds one")
	}
	return binary
}

// realAddress is that of the contract's endpoint: a is 127.0.1.1, b 127.0.1.2.
func realAddress(id string) string { return fmt.Sprintf("127.0.1.%d", id[0]-'a'+1) }

// realKnown answers for them.
func realKnown(hostport string) (scheduler.Target, bool) {
	host, _, _ := net.SplitHostPort(hostport)
	last, ok := strings.CutPrefix(host, "127.0.1.")
	if !ok || len(last) != 1 {
		return scheduler.Target{}, false
	}
	id := string(last[0] - '1' + 'a')
	return scheduler.Target{Endpoint: id, URL: "http://" + id + ".test"}, true
}

// realSubject is a client of a real picker.
type realSubject struct {
	*llmd.Client

	t      *testing.T
	picker *eppreal.EPP
}

func (s realSubject) SetEndpoints(endpoints []scheduler.Endpoint) {
	addresses := make(map[string]string, len(endpoints))
	for _, e := range endpoints {
		addresses["engine-"+e.ID] = realAddress(e.ID)
	}
	if err := s.picker.SetEndpoints(s.t.Context(), addresses); err != nil {
		s.t.Fatal(err)
	}
}

func pause(d time.Duration) { <-time.After(d) }

// startReal runs a picker until the test ends.
func startReal(t *testing.T, cfg eppreal.Config) *eppreal.EPP {
	t.Helper()
	cfg.Binary, cfg.Dir, cfg.Port = realBinary(t), t.TempDir(), realPort
	if cfg.Objectives == nil {
		cfg.Objectives = objectives()
	}
	picker, err := eppreal.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(picker.Stop)
	return picker
}

func realClient(t *testing.T, picker *eppreal.EPP, cfg llmd.Config) *llmd.Client {
	t.Helper()
	conn, err := grpc.NewClient(picker.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Pool, cfg.Picker, cfg.Objectives, cfg.Allowed = "p", llmd.Single(conn, "picker"), bands(), realKnown
	c := llmd.New(slog.New(slog.DiscardHandler), cfg)
	t.Cleanup(func() {
		c.Close()
		_ = conn.Close() // ends what a test that failed has left
		c.Wait()
	})
	return c
}

// A real picker has one number of places for all endpoints alike, and gives
// them out by their sum. It sweeps its queues once a second. When an endpoint
// goes it was seen to give one place more than there is.
func TestClientKeepsTheContractWithARealPicker(t *testing.T) {
	t.Parallel()
	realBinary(t)
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			places := 0
			for _, e := range p.Endpoints {
				places += e.MaxConcurrency
			}
			each := 2 // of endpoints that come later
			if len(p.Endpoints) > 0 {
				each = places / len(p.Endpoints)
			}
			picker := startReal(t, eppreal.Config{
				Places: each, MaxQueued: p.MaxQueued, MaxBandQueued: p.MaxBandQueued, TTL: p.TTL, Eviction: p.Eviction,
			})
			s := realSubject{realClient(t, picker, llmd.Config{}), t, picker}
			s.SetEndpoints(p.Endpoints)
			return s
		},
		Run:    func(t *testing.T, test func(t *testing.T)) { t.Helper(); test(t) },
		Settle: func() { pause(150 * time.Millisecond) },
		Slack:  3 * time.Second, Overshoots: true,
		Can: schedulertest.Capabilities{Turns: true, RequestTTL: true, LeastLoaded: true, Eviction: true},
	})
}

// realRequest is the i-th; a real picker reads its body.
func realRequest(i int) scheduler.Request {
	return scheduler.Request{
		ID: fmt.Sprintf("req_%d.1", i), Flow: scheduler.Flow{FairnessID: fmt.Sprintf("tenant-%d", i%3)}, Streams: true,
		Body: []byte(`{"messages":[{"content":"hello","role":"user"}],"model":"m","stream":true}`), InputTokens: 10, OutputTokens: 10,
	}
}

// realAnswer is a request's.
type realAnswer struct {
	lease scheduler.Lease
	err   error
}

func schedule(t *testing.T, c *llmd.Client, i int) <-chan realAnswer {
	t.Helper()
	return scheduleAs(t, c, realRequest(i))
}

func scheduleAs(t *testing.T, c *llmd.Client, r scheduler.Request) <-chan realAnswer {
	t.Helper()
	answer := make(chan realAnswer, 1)
	go func() {
		l, err := c.Schedule(t.Context(), r)
		answer <- realAnswer{l, err}
	}()
	return answer
}

// A picker that is killed loses its queues and forgets what runs. No answer that
// streams is hurt by that; what waited is sent again to the one that comes in
// its place, or refused when none comes.
func TestARealPickersEndLosesNothingThatRunsOrWaits(t *testing.T) {
	t.Parallel()
	const places, waiting = 4, 6
	for name, tt := range map[string]struct {
		patience time.Duration
		again    bool
	}{
		"and is started again": {time.Minute, true},
		"and stays away":       {200 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			picker := startReal(t, eppreal.Config{Places: places})
			if err := picker.SetEndpoints(t.Context(), map[string]string{"engine-a": realAddress("a")}); err != nil {
				t.Fatal(err)
			}
			c := realClient(t, picker, llmd.Config{Patience: tt.patience})
			var running []scheduler.Lease
			for i := range places {
				got := <-schedule(t, c, i)
				if got.err != nil {
					t.Fatal(got.err)
				}
				got.lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
				running = append(running, got.lease)
			}
			var queued []<-chan realAnswer
			for i := range waiting {
				queued = append(queued, schedule(t, c, places+i))
			}
			pause(300 * time.Millisecond)
			picker.Kill()

			for _, l := range running { // their answers go on, with nobody to tell
				for range 50 {
					l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte("data: {}\n\n")})
				}
				select {
				case <-l.Evicted():
					t.Error("an answer was cut because the picker died")
				default:
				}
			}
			if tt.again {
				if err := picker.Launch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			answers := make(chan realAnswer, waiting) // in the order in which they come: fewer run at a time than wait
			for _, q := range queued {
				go func() { answers <- <-q }()
			}
			for range waiting {
				got := <-answers
				switch {
				case tt.again && got.err != nil:
					t.Errorf("a request that waited was refused: %v", got.err)
				case tt.again:
					got.lease.End(scheduler.Outcome{Result: scheduler.Completed})
				case got.err == nil || !strings.Contains(got.err.Error(), string(scheduler.NoEndpoints)):
					t.Errorf("a request that waited got %v", got.err)
				}
			}
			for _, l := range running {
				l.End(scheduler.Outcome{Result: scheduler.Completed})
			}
			if n := c.Counts(); n.Lost != places || n.Live != 0 || n.Waiting != 0 || tt.again && n.Again < waiting {
				t.Errorf("counts %+v", n)
			}
		})
	}
}

// order gives the one place to whoever waits, one after the other, and returns
// in which order they were.
func order(t *testing.T, running scheduler.Lease, queued map[string]<-chan realAnswer) []string {
	t.Helper()
	type turn struct {
		name string
		got  realAnswer
	}
	next := make(chan turn, len(queued))
	for name, answer := range queued {
		go func() { next <- turn{name, <-answer} }()
	}
	var names []string
	for range queued {
		running.End(scheduler.Outcome{Result: scheduler.Completed})
		won := <-next
		if won.got.err != nil {
			t.Fatalf("%s was refused: %v", won.name, won.got.err)
		}
		names, running = append(names, won.name), won.got.lease
	}
	running.End(scheduler.Outcome{Result: scheduler.Completed})
	return names
}

// Two gateways that ask one picker have one queue: their tenants take turns as
// if they had come to one.
func TestGatewaysShareTheQueuesOfARealPicker(t *testing.T) {
	t.Parallel()
	picker := startReal(t, eppreal.Config{Places: 1})
	if err := picker.SetEndpoints(t.Context(), map[string]string{"engine-a": realAddress("a")}); err != nil {
		t.Fatal(err)
	}
	gateways := []*llmd.Client{realClient(t, picker, llmd.Config{}), realClient(t, picker, llmd.Config{})}
	running := <-schedule(t, gateways[0], 0)
	if running.err != nil {
		t.Fatal(running.err)
	}
	queued := map[string]<-chan realAnswer{}
	for i, name := range []string{"a1", "a2", "a3", "b1", "b2", "b3"} { // all of a's came first, to the other gateway
		r := realRequest(i + 1)
		r.Flow = scheduler.Flow{FairnessID: name[:1]}
		queued[name] = scheduleAs(t, gateways[i/3], r)
		pause(200 * time.Millisecond)
	}
	got := order(t, running.lease, queued)
	for i := range 3 {
		if pair := got[2*i][:1] + got[2*i+1][:1]; pair != "ab" && pair != "ba" {
			t.Errorf("the order is %v: the tenants don't take turns", got)
		}
	}
}

// A picker knows a band by the name of an objective. One that it doesn't know is
// band 0, without a word; once the objective is there, it counts.
func TestARealPickerTakesAnUnknownObjectiveForBandZero(t *testing.T) {
	t.Parallel()
	picker := startReal(t, eppreal.Config{Places: 1, Objectives: map[string]int{"batch": -10}})
	if err := picker.SetEndpoints(t.Context(), map[string]string{"engine-a": realAddress("a")}); err != nil {
		t.Fatal(err)
	}
	c := realClient(t, picker, llmd.Config{})
	// Of four, the last to come is of the higher band. The picker may place two at
	// once, and they may be told in either order.
	for _, tt := range []struct {
		objectives map[string]int
		from, to   int // where the last one goes
	}{
		{map[string]int{"batch": -10}, 2, 3},
		{objectives(), 0, 1},
	} {
		picker.SetObjectives(tt.objectives)
		pause(500 * time.Millisecond)
		running := <-schedule(t, c, 0)
		if running.err != nil {
			t.Fatal(running.err)
		}
		queued := map[string]<-chan realAnswer{}
		for i, name := range []string{"first", "second", "third", "last"} {
			r := realRequest(i + 1)
			r.Flow = scheduler.Flow{FairnessID: "f"}
			if name == "last" {
				r.Flow.Band = 100
			}
			queued[name] = scheduleAs(t, c, r)
			pause(200 * time.Millisecond)
		}
		got := order(t, running.lease, queued)
		if at := slices.Index(got, "last"); at < tt.from || at > tt.to {
			t.Errorf("with the objectives %v the order is %v, want the last one at %d to %d", tt.objectives, got, tt.from, tt.to)
		}
	}
}
