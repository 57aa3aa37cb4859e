package gateway

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
	"weir/gateway/conformance"
	"weir/scheduler"
)

// cachingEngine answers what its caches say of a salt and a prompt.
type cachingEngine struct {
	cached func(n int, salt, prompt string) int

	mu sync.Mutex
	n  int
}

func (e *cachingEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	n := e.cached(e.n, gjson.GetBytes(body, "cache_salt").Str, gjson.GetBytes(body, "messages.0.content").Str)
	e.n++
	e.mu.Unlock()
	if n < 0 {
		w.WriteHeader(http.StatusInternalServerError)
	}
	fmt.Fprintf(w, `{"usage":{"prompt_tokens":500,"prompt_tokens_details":{"cached_tokens":%d}}}`, n)
}

// newCache is a cache: of its keys, the repeated ones hit.
func newCache() func(key string) int {
	known := map[string]bool{}
	return func(key string) int {
		if known[key] {
			return 480
		}
		known[key] = true
		return 0
	}
}

func TestAProbeTellsACacheThatKeepsSaltsApart(t *testing.T) {
	t.Parallel()
	apart, mixed, one, two := newCache(), newCache(), newCache(), newCache()
	for _, tt := range []struct {
		name   string
		cached func(n int, salt, prompt string) int
		older  string
		want   error
	}{
		{"it does", func(_ int, salt, prompt string) int { return apart(salt + prompt) }, "", nil},
		{"it ignores them", func(_ int, _, prompt string) int { return mixed(prompt) }, "", conformance.ErrShared},
		{"the template alone is shared", func(int, string, string) int { return 8 }, "", conformance.ErrShared},
		{"there is none, or it is not told", func(int, string, string) int { return 0 }, "", conformance.ErrNoHit},
		{"two engines behind one address take turns", func(n int, salt, prompt string) int {
			if n%2 == 0 {
				return one(salt + prompt)
			}
			return two(salt + prompt)
		}, "", nil},
		{"slower storage forgets whose a prompt is", func(_ int, _, prompt string) int {
			if prompt == "yesterday" {
				return 480
			}
			return 0
		}, "yesterday", conformance.ErrShared},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g, by, target := probing(t, tt.cached)
			prompt, err := g.proveEndpoint(t.Context(), by, target, tt.older)
			if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err == nil && len(prompt) < 1000 {
				t.Errorf("a prompt of %d bytes fills no blocks", len(prompt))
			}
		})
	}
	g, by, target := probing(t, func(int, string, string) int { return -1 })
	if _, err := g.proveEndpoint(t.Context(), by, target, ""); err == nil || errors.Is(err, conformance.ErrShared) || errors.Is(err, conformance.ErrNoHit) {
		t.Errorf("of an engine that fails: %v", err)
	}
	by.model = nil
	if _, err := g.proveEndpoint(t.Context(), by, target, ""); !errors.Is(err, errNoModel) {
		t.Errorf("without a model: %v", err)
	}
}

func probing(t *testing.T, cached func(n int, salt, prompt string) int) (*Gateway, probe, scheduler.Target) {
	t.Helper()
	server := httptest.NewServer(&cachingEngine{cached: cached})
	t.Cleanup(server.Close)
	g := New(slog.New(slog.DiscardHandler), Deps{}, Config{SaltSecret: []byte("salt")})
	t.Cleanup(g.Close)
	return g, probe{&catalogue.Pool{Name: "p"}, &catalogue.Model{Name: "m"}, Chat}, scheduler.Target{Endpoint: "e", URL: server.URL}
}

func TestAProofHoldsForADay(t *testing.T) {
	t.Parallel()
	now, s := time.Unix(1e9, 0), spot{pool: "p", endpoint: "e", url: "http://e"}
	i := newIsolation()
	step := func(err error) { i.found(s, "prompt", err, now) }
	holds := func(want bool, when string) {
		t.Helper()
		if i.proven(s, now) != want {
			t.Errorf("%s: proven is %v", when, !want)
		}
	}
	dueIn := func(want time.Duration) {
		t.Helper()
		if _, early := i.due(s, now.Add(want-time.Second)); early {
			t.Errorf("due before %v", want)
		}
		if older, due := i.due(s, now.Add(want)); !due || older != "prompt" {
			t.Errorf("not due after %v, with the prompt %q", want, older)
		}
	}
	holds(false, "before any probe")
	step(conformance.ErrNoHit)
	holds(false, "after a probe that told nothing")
	dueIn(10 * time.Second)
	step(conformance.ErrNoHit)
	dueIn(20 * time.Second)
	for range 20 {
		step(conformance.ErrNoHit)
	}
	dueIn(5 * time.Minute)
	step(nil)
	holds(true, "after one that was passed")
	dueIn(24 * time.Hour)
	now = now.Add(24 * time.Hour)
	step(errNoModel)
	holds(true, "after one more that told nothing")
	dueIn(10 * time.Second)
	now = now.Add(time.Hour)
	holds(false, "when nothing was told for too long")
	step(nil)
	holds(true, "again")
	step(conformance.ErrShared)
	holds(false, "once it was refuted")
	i.keep(map[spot]bool{}, nil)
	if _, due := i.due(s, now); !due || len(i.proofs) != 0 {
		t.Error("an endpoint that is gone is still known")
	}
}
