package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"weir/gateway"
	"weir/gateway/replay"
)

// shelf keeps answers in memory.
type shelf struct {
	mu   sync.Mutex
	kept map[string]*kept // by project and key
	err  error
}

type kept struct {
	asked   replay.Asked
	outcome replay.Outcome
	answer  replay.Answer
}

func (s *shelf) Claim(_ context.Context, a *replay.Asked) (replay.Outcome, replay.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := string(a.Project) + "/" + a.Key
	k := s.kept[name]
	switch {
	case s.err != nil:
		return "", replay.Answer{}, s.err
	case k == nil:
		s.kept[name] = &kept{asked: *a, outcome: replay.Running}
		return replay.Claimed, replay.Answer{}, nil
	case k.asked.Print != a.Print:
		return replay.Other, replay.Answer{}, nil
	default:
		return k.outcome, k.answer, nil
	}
}

func (s *shelf) Keep(_ context.Context, a *replay.Asked, mediaType string, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[string(a.Project)+"/"+a.Key]
	if k.outcome = replay.Done; body == nil {
		k.outcome = replay.Bare
	}
	k.answer = replay.Answer{Request: a.Request, Type: mediaType, Body: append([]byte(nil), body...)}
	return nil
}

func (s *shelf) KeepWith(ctx context.Context, _ pgx.Tx, a *replay.Asked) error {
	return s.Keep(ctx, a, "", nil)
}

func (s *shelf) Drop(_ context.Context, a *replay.Asked) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, string(a.Project)+"/"+a.Key)
	return nil
}

// counter is a gateway that counts what it runs.
type counter struct {
	runs int
	run  runner
}

func (c *counter) Run(ctx context.Context, call gateway.Call, s gateway.Sink) error {
	c.runs++
	return c.run(ctx, call, s)
}

func (*counter) CountTokens(context.Context, gateway.Call) (int64, error) { return 0, nil }

// post sends a chat with a key of the caller's.
func postOnce(t *testing.T, s *Server, key, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	postOnceTo(t, s, w, key, body)
	return w
}

func postOnceTo(t *testing.T, s *Server, w http.ResponseWriter, key, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer good")
	if key != "" {
		r.Header.Set(headerOnce, key)
	}
	s.Handler().ServeHTTP(w, r)
}

func onceHouse(t *testing.T, retention int, run runner) (*Server, *counter, *shelf) {
	t.Helper()
	keys, c, at := newKeyring(), &counter{run: run}, &shelf{kept: map[string]*kept{}}
	keys.keys["good"].Plan.RetentionDays = retention
	return New(slog.New(slog.DiscardHandler), Deps{Keys: keys, Gateway: c, Replays: at, Catalogue: func() Catalogue { return newShop() }}), c, at
}

func TestARequestThatComesAgainIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s, c, _ := onceHouse(t, 30, respond)
	first, again := postOnce(t, s, "job-1", helloBody), postOnce(t, s, "job-1", helloBody)
	if first.Code != http.StatusOK || again.Code != http.StatusOK || first.Body.String() != again.Body.String() || c.runs != 1 {
		t.Errorf("%d: %s\nthen %d: %s\nafter %d runs", first.Code, first.Body, again.Code, again.Body, c.runs)
	}
	for name, want := range map[string]string{
		headerReplayed: "true", headerOriginal: first.Header().Get(headerRequestID), headerType: first.Header().Get(headerType),
	} {
		if got := again.Header().Get(name); got != want || got == "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if id := again.Header().Get(headerRequestID); id == first.Header().Get(headerRequestID) {
		t.Error("two requests have one id")
	}
	if first.Header().Get(headerReplayed) != "" {
		t.Error("the first claims to be a repetition")
	}
	if w := postOnce(t, s, "job-1", strings.Replace(helloBody, "hi", "ho", 1)); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), `"idempotency_key_reused"`) {
		t.Errorf("another body: %d: %s", w.Code, w.Body)
	}
	if w := postOnce(t, s, "job-2", helloBody); w.Code != http.StatusOK || c.runs != 2 {
		t.Errorf("another key: %d after %d runs", w.Code, c.runs)
	}
	if w := postOnce(t, s, "", helloBody); w.Code != http.StatusOK || c.runs != 3 {
		t.Errorf("no key: %d after %d runs", w.Code, c.runs)
	}
}

func TestAStreamThatComesAgainIsGivenWhole(t *testing.T) {
	t.Parallel()
	s, c, _ := onceHouse(t, 30, func(ctx context.Context, _ gateway.Call, to gateway.Sink) error {
		if err := to.Begin(ctx, gateway.Head{Stream: true}); err != nil {
			return err
		}
		return errors.Join(to.Send(ctx, []byte("data: {}\n\n")), to.Send(ctx, []byte("data: [DONE]\n\n")))
	})
	body := strings.Replace(helloBody, `{"model"`, `{"stream":true,"model"`, 1)
	first, again := postOnce(t, s, "job", body), postOnce(t, s, "job", body)
	if c.runs != 1 || again.Body.String() != "data: {}\n\ndata: [DONE]\n\n" || again.Body.String() != first.Body.String() ||
		!strings.HasPrefix(again.Header().Get(headerType), "text/event-stream") {
		t.Errorf("%d runs, %q: %s", c.runs, again.Header().Get(headerType), again.Body)
	}
}

// deaf is a caller who leaves after so many writes.
type deaf struct {
	*httptest.ResponseRecorder

	hears int
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.hears--; d.hears < 0 {
		return 0, errors.New("broken pipe")
	}
	return d.ResponseRecorder.Write(p)
}

// Who leaves near the end of an answer pays for it, and may come back for it: it
// is given whole, or not at all.
func TestAnAnswerWithoutItsEndIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	pieces := []string{": keepalive\n\n", "data: {}\n\n", "data: [DONE]\n\n"}
	for hears, want := range []int{http.StatusConflict, http.StatusConflict, http.StatusOK, http.StatusOK} {
		t.Run(fmt.Sprintf("a stream of which the caller heard %d of 3 pieces", hears), func(t *testing.T) {
			t.Parallel()
			s, c, _ := onceHouse(t, 30, func(ctx context.Context, _ gateway.Call, to gateway.Sink) error {
				err := to.Begin(ctx, gateway.Head{Stream: true})
				for _, p := range pieces { // as the gateway does: what was made is paid for, and nothing follows a fault
					if err == nil {
						err = to.Send(ctx, []byte(p))
					}
				}
				return nil
			})
			body := strings.Replace(helloBody, `{"model"`, `{"stream":true,"model"`, 1)
			postOnceTo(t, s, &deaf{httptest.NewRecorder(), hears}, "job", body)
			again := postOnce(t, s, "job", body)
			if again.Code != want || c.runs != 1 {
				t.Errorf("%d after %d runs: %s", again.Code, c.runs, again.Body)
			}
			if want == http.StatusOK && again.Body.String() != strings.Join(pieces, "") {
				t.Errorf("given again: %s", again.Body)
			}
		})
	}
	t.Run("a document that nobody heard", func(t *testing.T) {
		t.Parallel()
		s, c, _ := onceHouse(t, 30, func(ctx context.Context, _ gateway.Call, to gateway.Sink) error {
			if err := to.Begin(ctx, gateway.Head{}); err != nil {
				return err
			}
			_ = to.Send(ctx, []byte("{}"))
			return nil
		})
		postOnceTo(t, s, &deaf{httptest.NewRecorder(), 0}, "job", helloBody)
		if again := postOnce(t, s, "job", helloBody); again.Code != http.StatusOK || again.Body.String() != "{}" || c.runs != 1 {
			t.Errorf("%d after %d runs: %s", again.Code, c.runs, again.Body)
		}
	})
}

func TestWhatIsNotKeptIsToldApart(t *testing.T) {
	t.Parallel()
	long := func(ctx context.Context, _ gateway.Call, to gateway.Sink) error {
		if err := to.Begin(ctx, gateway.Head{}); err != nil {
			return err
		}
		return to.Send(ctx, make([]byte, maxKept+1))
	}
	fails := func(context.Context, gateway.Call, gateway.Sink) error {
		return &gateway.Error{Cause: gateway.PoolFull}
	}
	panics := func(context.Context, gateway.Call, gateway.Sink) error { panic("at the wrong time") }
	tests := []struct {
		name      string
		retention int
		run       runner
		status    int
		code      string
		retry     string // x-should-retry
		runs      int
	}{
		{"a tenant whose content is kept nowhere", 0, respond, http.StatusConflict, "idempotency_answer_not_kept", "false", 1},
		{"an answer that is too long", 30, long, http.StatusConflict, "idempotency_answer_not_kept", "false", 1},
		{"a request that failed is run again", 30, fails, http.StatusServiceUnavailable, "server_is_overloaded", "", 2},
		{"one that panicked, too", 30, panics, http.StatusInternalServerError, "", "", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, c, at := onceHouse(t, tt.retention, tt.run)
			postOnce(t, s, "job", helloBody)
			w := postOnce(t, s, "job", helloBody)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.code) || w.Header().Get("X-Should-Retry") != tt.retry || c.runs != tt.runs {
				t.Errorf("%d after %d runs: %s", w.Code, c.runs, w.Body)
			}
			for _, k := range at.kept {
				if len(k.answer.Body) > 0 {
					t.Errorf("%d bytes were kept", len(k.answer.Body))
				}
			}
		})
	}
}

func TestAKeyInUseIsRefusedUntilItsAnswerIsThere(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan struct{}), make(chan struct{})
	s, c, _ := onceHouse(t, 30, func(ctx context.Context, call gateway.Call, to gateway.Sink) error {
		close(began)
		<-goOn
		return respond(ctx, call, to)
	})
	var wg sync.WaitGroup
	wg.Go(func() { postOnce(t, s, "job", helloBody) })
	<-began
	if w := postOnce(t, s, "job", helloBody); w.Code != http.StatusConflict || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "idempotency_key_in_use") {
		t.Errorf("%d, %q: %s", w.Code, w.Header().Get("Retry-After"), w.Body)
	}
	close(goOn)
	wg.Wait()
	if w := postOnce(t, s, "job", helloBody); w.Code != http.StatusOK || c.runs != 1 {
		t.Errorf("%d after %d runs", w.Code, c.runs)
	}
}

func TestKeysThatCannotBeAskedForRunNothing(t *testing.T) {
	t.Parallel()
	s, c, at := onceHouse(t, 30, respond)
	at.err = errors.New("connection refused")
	if w := postOnce(t, s, "job", helloBody); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || c.runs != 0 {
		t.Errorf("%d after %d runs", w.Code, c.runs)
	}
	for _, key := range []string{strings.Repeat("k", 256), "a b", "é"} {
		if w := postOnce(t, s, key, helloBody); w.Code != http.StatusBadRequest || c.runs != 0 {
			t.Errorf("key %q: %d", key, w.Code)
		}
	}
}
