package conformance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"weir/scheduler"
)

const (
	longAnswer  = 4096             // tokens, or half of what the context has
	startLimit  = 30 * time.Second // until the load shows a request
	cancelLeast = 300 * time.Millisecond
)

func idle(l scheduler.Load) bool { return l.Running == 0 && l.Waiting == 0 }
func busy(l scheduler.Load) bool { return l.Running > 0 }

// checkCancel leaves one stream and one whole answer, and looks whether the
// server goes on with them.
func (s *server) checkCancel(ctx context.Context) []Check {
	return []Check{
		s.cancel(ctx, CancelStream, func(ctx context.Context, body fields) {
			_, _ = s.events(ctx, body, func([]byte) bool { return true })
		}),
		s.cancel(ctx, CancelWhole, func(ctx context.Context, body fields) {
			_, _ = s.ask(ctx, chatPath, body)
		}),
	}
}

// long is a request whose answer takes its time, and about how long that is.
func (s *server) long() (body fields, takes time.Duration) {
	tokens := longAnswer
	if s.context > 0 {
		tokens = min(tokens, s.context/2)
	}
	return s.chat(streamAsk, tokens, fields{"ignore_eos": true, "min_tokens": tokens}), s.pace * time.Duration(tokens)
}

// cancel leaves while the answer is made, when the server says that it makes
// it. Being idle soon after is no proof: the answer may have come to its end.
func (s *server) cancel(ctx context.Context, name string, ask func(context.Context, fields)) Check {
	if _, ok := s.until(ctx, s.cfg.Patience, idle); !ok {
		if _, err := s.load(ctx); err != nil {
			return Check{name, Unknown, "its load can't be read: " + err.Error(), "see the check of its metrics"}
		}
		return Check{name, Unknown, "it is busy with other requests", "try again when it is idle"}
	}
	body, takes := s.long()
	tooFast := Check{Name: name, Status: Unknown, Found: fmt.Sprintf("its longest answer takes %v: it is over before anybody can leave", takes.Round(time.Millisecond))}
	if takes < cancelLeast {
		return tooFast
	}
	before, counts := s.generated(ctx)
	asking, leave := context.WithCancel(ctx)
	defer leave()
	left := make(chan struct{})
	go func() {
		defer close(left)
		ask(asking, body)
	}()
	defer func() { <-left }()
	defer leave()
	if _, ok := s.until(ctx, min(startLimit, takes), busy); !ok {
		select {
		case <-left:
			return tooFast
		default:
		}
		return Check{name, Unknown, "its load never showed the request", "see the check of its metrics"}
	}
	leave()
	took, ok := s.until(ctx, s.cfg.Patience, idle)
	after, _ := s.generated(ctx)
	switch wanted, _ := body["max_tokens"].(int); {
	case !ok:
		return goesOn(name, fmt.Sprintf("%v after its caller has left, it still makes the answer", took.Round(time.Millisecond)))
	case counts && after-before >= int64(wanted):
		return goesOn(name, "it made the whole answer, though its caller had left")
	case !counts && took > takes/4:
		return Check{Name: name, Status: Unknown, Found: fmt.Sprintf("it was idle after %v, and doesn't tell how much it had made", took.Round(time.Millisecond))}
	}
	return Check{Name: name, Status: Pass, Found: fmt.Sprintf("it stopped within %v", took.Round(10*time.Millisecond))}
}

func goesOn(name, found string) Check {
	return Check{name, Fail, found, "whoever leaves keeps a place, and pays: upgrade it, or put no proxy between that holds connections"}
}

// generated is how many tokens the server says that it has made since its
// start; false where it doesn't say.
func (s *server) generated(ctx context.Context) (tokens int64, ok bool) {
	a, err := s.ask(ctx, "/metrics", nil)
	if err != nil || !a.ok() {
		return 0, false
	}
	for line := range strings.Lines(string(a.body)) {
		line = strings.TrimSpace(line)
		name := line[:max(strings.IndexAny(line, "{ "), 0)]
		if name != "vllm:generation_tokens_total" && name != "sglang:generation_tokens_total" && name != "llamacpp:tokens_predicted_total" {
			continue
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexAny(line, "} ")+1:], 64); err == nil {
			tokens, ok = tokens+int64(v), true
		}
	}
	return tokens, ok
}
