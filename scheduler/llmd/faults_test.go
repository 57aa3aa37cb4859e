//nolint:thelper // the functions given to alone are the tests themselves
package llmd_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"weir/scheduler"
	"weir/scheduler/extproc"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppsim"
)

const silence = 10 * time.Minute

func TestAnyAnswerOfAPickerIsDecidedInTime(t *testing.T) {
	t.Parallel()
	plain, asJSON := false, true
	sent := body(1000)
	prefill := eppsim.Decision("a.test:80", [][2]string{{extproc.Destination, "a.test:80"}, {extproc.Prefiller, "169.254.169.254:80"}}, sent)
	whole := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
		Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: sent}}},
	}}}
	late := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{}}
	big := eppsim.Decision("a.test:80", [][2]string{{"x-large", strings.Repeat("x", 2<<20)}}, sent)
	for _, c := range []struct {
		name   string
		fault  eppsim.Fault
		reason scheduler.Reason
		cause  error // that the refusal has, if any
		waits  time.Duration
	}{
		{"it is full, in JSON", eppsim.Refuse(eppsim.Refusal(429, "rejected-saturated", "full", asJSON)), scheduler.PoolFull, nil, 0},
		{"it is full, in plain text", eppsim.Refuse(eppsim.Refusal(429, "rejected-saturated", "full", plain)), scheduler.PoolFull, nil, 0},
		{"the time is up, as 429", eppsim.Refuse(eppsim.Refusal(429, "rejected-ttl-expired", "late", asJSON)), scheduler.QueueTimeout, nil, 0},
		{"the time is up, as 503", eppsim.Refuse(eppsim.Refusal(503, "rejected-ttl-expired", "late", plain)), scheduler.QueueTimeout, nil, 0},
		{"it has no endpoints", eppsim.Refuse(eppsim.Refusal(503, "rejected-no-endpoints", "none", plain)), scheduler.NoEndpoints, nil, 0},
		{"it drains", eppsim.Refuse(eppsim.Refusal(503, "rejected-shutting-down", "bye", plain)), scheduler.ShuttingDown, nil, 0},
		{"its flow control failed", eppsim.Refuse(eppsim.Refusal(500, "rejected-internal", "oh", asJSON)), scheduler.Internal, nil, 0},
		{"it says 500 alone", eppsim.Refuse(eppsim.Refusal(500, "", "oh", plain)), scheduler.Internal, nil, 0},
		{"its admitter denies, as 500", eppsim.Refuse(eppsim.Refusal(500, "", "request cannot be admitted: by chance", plain)), scheduler.ShedLoad, nil, 0},
		{"its admitter denies, in JSON", eppsim.Refuse(eppsim.Refusal(500, "", "request cannot be admitted: by chance", asJSON)), scheduler.ShedLoad, nil, 0},
		{"it sheds without flow control", eppsim.Refuse(eppsim.Refusal(429, "", "system saturated, sheddable request dropped", plain)), scheduler.ShedLoad, nil, 0},
		{"it finds the request bad", eppsim.Refuse(eppsim.Refusal(400, "", "no model", asJSON)), scheduler.Internal, nil, 0},

		{"it dies while the body is sent", eppsim.Die(eppsim.Reading), scheduler.NoEndpoints, nil, 0},
		{"it dies while the request queues", eppsim.Die(eppsim.Queued), scheduler.NoEndpoints, nil, 0},
		{"it dies instead of deciding", eppsim.Die(eppsim.Deciding), scheduler.NoEndpoints, nil, 0},
		{"it hangs up", eppsim.HangUp(eppsim.Queued), scheduler.NoEndpoints, nil, 0},
		{"it says nothing", eppsim.Silence(eppsim.Queued), scheduler.QueueTimeout, nil, silence},
		{"it decides and sends no body", eppsim.Say(eppsim.Deciding, eppsim.Decision("a.test:80", nil, sent)[0]), scheduler.NoEndpoints, nil, 0},

		{"it answers the answer", eppsim.Say(eppsim.Queued, late), scheduler.Internal, extproc.ErrGarbage, 0},
		{"it sends an empty message", eppsim.Say(eppsim.Queued, &extprocv3.ProcessingResponse{}), scheduler.Internal, extproc.ErrGarbage, 0},
		{"the body comes first", eppsim.Say(eppsim.Queued, eppsim.Piece(sent, true)), scheduler.Internal, extproc.ErrGarbage, 0},
		{"the body is not streamed", eppsim.Say(eppsim.Queued, eppsim.Decision("a.test:80", nil, sent)[0], whole), scheduler.Internal, extproc.ErrGarbage, 0},
		{"no destination", eppsim.Say(eppsim.Queued, eppsim.Decision("", nil, sent)...), scheduler.Internal, extproc.ErrNoDestination, 0},
		{"a URL for a destination", eppsim.Say(eppsim.Queued, eppsim.Decision("http://a.test:80/", nil, sent)...), scheduler.Internal, extproc.ErrGarbage, 0},
		{"a destination that is not of the pool", eppsim.Say(eppsim.Queued, eppsim.Decision("169.254.169.254:80", nil, sent)...), scheduler.Internal, llmd.ErrForeign, 0},
		{"a prefill server that is not of the pool", eppsim.Say(eppsim.Queued, prefill...), scheduler.Internal, llmd.ErrForeign, 0},
		{"a body without end", eppsim.Forever(eppsim.Deciding, eppsim.Piece(sent, false)), scheduler.Internal, extproc.ErrTooMuch, 0},
		{"empty pieces without end", eppsim.Forever(eppsim.Deciding, eppsim.Piece(nil, false)), scheduler.Internal, extproc.ErrTooMuch, 0},
		{"decisions without end", eppsim.Forever(eppsim.Deciding, eppsim.Decision("a.test:80", nil, nil)[0]), scheduler.Internal, extproc.ErrTooMuch, 0},
		{"a message of megabytes", eppsim.Say(eppsim.Queued, big...), scheduler.Internal, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			alone(t, eppsim.Config{}, llmd.Config{Patience: -1}, func(t *testing.T, client *llmd.Client, s served) {
				s.Script(c.fault)
				began := time.Now()
				refusal := refused(t, client, scheduler.Request{ID: "r.1", Body: sent})
				if refusal.Reason != c.reason || (c.cause != nil && !errors.Is(refusal, c.cause)) {
					t.Errorf("refused as %v, want %s with the cause %v", refusal, c.reason, c.cause)
				}
				if took := time.Since(began); took != c.waits {
					t.Errorf("it took %v, want %v", took, c.waits)
				}
				if c.reason != scheduler.Internal && (refusal.RetryAfter < time.Second || refusal.RetryAfter > time.Minute) {
					t.Errorf("retry after %v", refusal.RetryAfter)
				}
				granted(t, client, scheduler.Request{ID: "r.2", Body: sent}).End(scheduler.Outcome{}) // the next is served
			})
		})
	}
}

func TestASecondDecisionIsIgnored(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		s.Script(eppsim.Twice(eppsim.Decision("b.test:80", nil, []byte(`{"another":"body"}`))))
		sent := body(100)
		l := granted(t, c, scheduler.Request{ID: "r.1", Body: sent})
		synctest.Wait()
		if at := l.Targets(); len(at) != 1 || at[0].Endpoint != "a" || !bytes.Equal(l.Body(), sent) {
			t.Errorf("it goes to %v with %q, want the first decision", at, l.Body())
		}
		l.End(scheduler.Outcome{})
	})
}

// The answer is the caller's: what happens to the picker doesn't touch it.
func TestAPickerThatDiesWhileTheAnswerRunsDoesNotHurtIt(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]eppsim.Fault{
		"dies":     eppsim.Die(eppsim.Streaming),
		"hangs":    eppsim.Silence(eppsim.Streaming),
		"hangs up": eppsim.HangUp(eppsim.Streaming),
		"refuses, as it shuts down": eppsim.Say(eppsim.Streaming, &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: eppsim.Refusal(503, "rejected-shutting-down", "bye", true)},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
				s.Script(fault)
				l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1), Streams: true})
				l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
				began := time.Now()
				for range 100 {
					l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte(`{"delta":"x"}`)})
				}
				synctest.Wait()
				select {
				case <-l.Evicted():
					t.Error("the lease was evicted")
				default:
				}
				l.End(scheduler.Outcome{})
				if took := time.Since(began); took != 0 {
					t.Errorf("the answer was held up for %v", took)
				}
			})
		})
	}
}

// A picker that stops listening costs a bounded part of memory and no time.
func TestASlowPickerLosesEventsAndHoldsNothingUp(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		s.Script(eppsim.Silence(eppsim.Streaming))
		l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1), Streams: true})
		l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		event := body(10_000)
		for range 1000 {
			l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: event})
		}
		synctest.Wait()
		if n := c.Counts().Dropped; n == 0 {
			t.Error("10 MB wait for a picker that doesn't listen")
		}
		l.End(scheduler.Outcome{})
		c.Close()
		began := time.Now()
		c.Wait()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the stream lived for %v after its end", took)
		}
	})
}

// What a slow picker missed it is told as an account at the end.
func TestDroppedEventsLeaveTheUsage(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
		l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: body(2 << 20)})
		l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 10, CachedTokens: 20, OutputTokens: 30})
		x := only(t, s)
		want := `{"usage":{"prompt_tokens":30,"completion_tokens":30,"total_tokens":60,"prompt_tokens_details":{"cached_tokens":20}}}`
		if got := string(bytes.Join(x.Events, nil)); got != want || !x.Complete {
			t.Errorf("the picker was told %.200q, complete %v", got, x.Complete)
		}
	})
}

// pickers gives out one after the other, each failure the next.
type pickers struct {
	conns []grpc.ClientConnInterface
	at    int
	err   error
}

func (p *pickers) pick() (llmd.Peer, error) {
	if p.err != nil {
		return nil, p.err
	}
	return &counted{p, p.at}, nil
}

type counted struct {
	all *pickers
	i   int
}

func (c *counted) Conn() grpc.ClientConnInterface { return c.all.conns[c.i] }
func (c *counted) Name() string                   { return "picker" }
func (c *counted) Report(err error) {
	if err != nil {
		c.all.at = (c.i + 1) % len(c.all.conns)
	}
}

func TestARequestWhosePickerDiesIsSentToTheNextAtTheHeadOfItsFlow(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]eppsim.Fault{
		"while it queues": eppsim.Die(eppsim.Queued), "while its body is sent": eppsim.Die(eppsim.Reading), "for it drains": eppsim.Refuse(eppsim.Refusal(503, "rejected-shutting-down", "bye", true)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list := &pickers{}
			alone(t, eppsim.Config{}, llmd.Config{Own: true, Picker: list.pick, Patience: 5 * time.Second}, func(t *testing.T, c *llmd.Client, first served) {
				second := serve(t, eppsim.Config{})
				second.SetEndpoints([]eppsim.Endpoint{{Address: "b.test:80", Max: 1}})
				list.conns = []grpc.ClientConnInterface{first.conn, second.conn}
				first.Script(fault)
				l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
				if at := l.Targets()[0].Endpoint; at != "b" {
					t.Errorf("the lease is for %s, not of the second picker", at)
				}
				l.End(scheduler.Outcome{})
				if x := only(t, second); x.Headers["x-weir-waited-us"] == "" {
					t.Error("the second picker doesn't know that the request has waited")
				}
				if n := c.Counts().Again; n != 1 {
					t.Errorf("%d tries more, want 1", n)
				}
			})
		})
	}
}

func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	list := &pickers{}
	alone(t, eppsim.Config{}, llmd.Config{Picker: list.pick, Patience: 5 * time.Second}, func(t *testing.T, c *llmd.Client, s served) {
		list.conns = []grpc.ClientConnInterface{s.conn}
		s.grpc.Stop()
		began := time.Now()
		refusal := refused(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
		if took := time.Since(began); refusal.Reason != scheduler.NoEndpoints || took < 4*time.Second || took > 7*time.Second {
			t.Errorf("refused as %v after %v", refusal, took)
		}
		list.err = llmd.ErrNoScheduler
		began = time.Now()
		refusal = refused(t, c, scheduler.Request{ID: "r.2", Body: body(1)})
		if took := time.Since(began); !errors.Is(refusal, llmd.ErrNoScheduler) || took != 0 {
			t.Errorf("with nobody to ask refused as %v after %v, want at once", refusal, took)
		}
	})
}

// The stand-in of a plan is for requests that nobody decided on.
func TestAPickerThatDrainsHasNotDecided(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{Patience: -1}, func(t *testing.T, c *llmd.Client, s served) {
		s.Script(eppsim.Refuse(eppsim.Refusal(503, "rejected-shutting-down", "bye", true)))
		refusal := refused(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
		if refusal.Reason != scheduler.ShuttingDown || !llmd.Undecided(refusal) {
			t.Errorf("refused as %v, undecided: %v", refusal, llmd.Undecided(refusal))
		}
		s.Script(eppsim.Refuse(eppsim.Refusal(429, "rejected-saturated", "full", true)))
		if refusal := refused(t, c, scheduler.Request{ID: "r.2", Body: body(1)}); llmd.Undecided(refusal) {
			t.Errorf("%v is a decision", refusal)
		}
	})
}

// A `weir scheduler` keeps the time itself: while it is away, its client does.
func TestARequestsOwnTimeLimitHoldsWhileTheSchedulerIsAway(t *testing.T) {
	t.Parallel()
	for ttl, most := range map[time.Duration]time.Duration{-1: 2 * time.Second, 3 * time.Second: 5 * time.Second} {
		list := &pickers{}
		alone(t, eppsim.Config{}, llmd.Config{Picker: list.pick, Own: true}, func(t *testing.T, c *llmd.Client, s served) {
			list.conns = []grpc.ClientConnInterface{s.conn}
			s.grpc.Stop()
			began := time.Now()
			refusal := refused(t, c, scheduler.Request{ID: "r.1", Body: body(1), TTL: ttl})
			if took := time.Since(began); refusal.Reason != scheduler.QueueTimeout || took > most {
				t.Errorf("with %v to wait refused as %v after %v", ttl, refusal, took)
			}
		})
	}
}

func TestTheTimeToComeBackFollowsTheWaits(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{MaxQueued: 1}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		s.SetEndpoints([]eppsim.Endpoint{{Address: "a.test:80", Max: 1}})
		full := func() time.Duration {
			running := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
			done := make(chan struct{})
			go func() {
				defer close(done)
				if l, err := c.Schedule(t.Context(), scheduler.Request{ID: "r.2", Body: body(1)}); err == nil {
					l.End(scheduler.Outcome{})
				}
			}()
			synctest.Wait()
			refusal := refused(t, c, scheduler.Request{ID: "r.3", Body: body(1)})
			synctest.Sleep(20 * time.Second)
			running.End(scheduler.Outcome{})
			<-done
			return refusal.RetryAfter
		}
		first := full()
		for range 20 {
			_ = full()
		}
		if last := full(); first != time.Second || last < 5*time.Second || last > 20*time.Second {
			t.Errorf("come back after %v, and where requests wait 0 to 20 s after %v", first, last)
		}
	})
}
