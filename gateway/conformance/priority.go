package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"weir/scheduler"
)

const (
	urgency   = 10                     // of the two requests, one way and the other
	fillLimit = 5 * time.Second        // until the load shows those that came
	turnLimit = 500 * time.Millisecond // for one of the two, after a place has become free
)

// checkPriority fills the server, lets a request that isn't urgent wait there
// and then one that is, makes room, and looks who is served first.
func (s *server) checkPriority(ctx context.Context) Check {
	flag := "vLLM: --scheduling-policy priority, SGLang: --enable-priority-scheduling"
	if s.engine == llamaCPP {
		return Check{PriorityDirection, Unsupported, "the engine has none", "none: the gateway sends it no priorities"}
	}
	a, err := s.ask(ctx, chatPath, s.chat(streamAsk, 1, fields{"priority": s.priority(urgency)}))
	switch {
	case err != nil:
		return Check{Name: PriorityDirection, Status: Unknown, Found: err.Error()}
	case !a.ok():
		return Check{PriorityDirection, Unsupported, a.says(), "leave requestHandler.propagatePriority off, or switch them on (" + flag + ")"}
	case s.cfg.Fill == 0:
		return Check{PriorityDirection, Unknown, "priorities are taken; who goes first was not tried", "--fill N asks for N long answers at once: more than it runs together"}
	}
	if _, ok := s.until(ctx, s.cfg.Patience, idle); !ok {
		return Check{PriorityDirection, Unknown, "it is busy, or its load can't be read", "try again when it is idle"}
	}
	f := s.fill(ctx)
	defer f.empty()
	_, _ = s.until(ctx, fillLimit, func(l scheduler.Load) bool { return l.Running+l.Waiting >= s.cfg.Fill }) // all have come
	if _, ok := s.until(ctx, turnLimit, func(l scheduler.Load) bool { return l.Waiting > 0 }); !ok {
		return Check{PriorityDirection, Unknown, fmt.Sprintf("with %d answers at once nobody had to wait", s.cfg.Fill), fmt.Sprintf("--fill %d", 4*s.cfg.Fill)}
	}
	switch s.race(ctx, f) {
	case "urgent":
		return Check{Name: PriorityDirection, Status: Pass, Found: "the urgent of two that wait goes first, though it came last"}
	case "other":
		return Check{PriorityDirection, Fail, "of two that wait, the one that isn't urgent went first", "priorities are ignored or turned round there: leave requestHandler.propagatePriority off (" + flag + ")"}
	default:
		return Check{PriorityDirection, Unknown, "neither of two that waited was served in time", "try again when it is idle"}
	}
}

// priority is an urgency (higher is more urgent) with the sign that the engine wants.
func (s *server) priority(urgency int) int {
	if s.engine == sglang {
		return urgency
	}
	return -urgency
}

// race lets two requests wait and returns which of them is answered first.
func (s *server) race(ctx context.Context, f *filling) string {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	first := make(chan string, 2)
	enter := func(name string, urgency, waiting int) bool {
		asking.Go(func() {
			if a, err := s.ask(ctx, chatPath, s.chat(streamAsk, 1, fields{"priority": s.priority(urgency)})); err == nil && a.ok() {
				first <- name
			}
		})
		_, ok := s.until(ctx, fillLimit, func(l scheduler.Load) bool { return l.Waiting > waiting })
		return ok
	}
	before, err := s.load(ctx)
	if err != nil || !enter("other", -urgency, before.Waiting) || !enter("urgent", urgency, before.Waiting+1) {
		return ""
	}
	for f.leave() {
		turn := time.NewTimer(turnLimit)
		select {
		case name := <-first:
			turn.Stop()
			return name
		case <-turn.C:
		}
	}
	return ""
}

// filling is long answers that keep a server busy.
type filling struct {
	leaves []context.CancelFunc // the oldest first
	asking sync.WaitGroup
}

func (s *server) fill(ctx context.Context) *filling {
	f := &filling{}
	for range s.cfg.Fill {
		one, leave := context.WithCancel(ctx)
		f.leaves = append(f.leaves, leave)
		f.asking.Go(func() {
			body, _ := s.long()
			_, _ = s.events(one, body, func([]byte) bool { return true })
		})
	}
	return f
}

// leave ends the oldest that is left, and reports whether there was one.
func (f *filling) leave() bool {
	if len(f.leaves) == 0 {
		return false
	}
	f.leaves[0]()
	f.leaves = f.leaves[1:]
	return true
}

func (f *filling) empty() {
	for f.leave() {
	}
	f.asking.Wait()
}
