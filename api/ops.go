package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkTimeout bounds what /readyz waits for.
const checkTimeout = 2 * time.Second

// Check is one thing that readiness depends on.
type Check struct {
	Name string
	// Vital checks make the server not ready when they fail; others make it
	// degraded, which is still ready.
	Vital bool
	// Note has what Run returns be told without making the server degraded.
	Note bool
	// Run returns what is wrong. Operators read it: it holds no secrets.
	Run func(ctx context.Context) error
}

// readiness is the answer of /readyz.
type readiness struct {
	Status string            `json:"status"` // ready, degraded, not ready
	Checks map[string]string `json:"checks"` // name -> "ok" or what is wrong
}

// NewOps serves the operators' pages of a process that has no public ones. Of d
// it uses what these pages show.
func NewOps(log *slog.Logger, d Deps) http.Handler {
	return (&Server{log: log, answers: answers()}).newOps(d)
}

func (s *Server) newOps(d Deps) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeOps(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		status, answer := runChecks(r.Context(), d.Checks)
		writeOps(w, status, answer)
	})
	if d.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(d.Gatherer, promhttp.HandlerOpts{}))
	}
	private := http.NewServeMux()
	if d.Pools != nil {
		private.HandleFunc("GET /ops/v1/pools", func(w http.ResponseWriter, _ *http.Request) {
			writeOps(w, http.StatusOK, map[string]any{"pools": d.Pools()})
		})
	}
	if d.Decisions != nil {
		private.HandleFunc("GET /ops/v1/decisions", func(w http.ResponseWriter, r *http.Request) {
			s.decisions(w, r, d.Decisions)
		})
	}
	profiles(private)
	mux.Handle("/ops/v1/", s.operatorsOnly(d.Config.OpsToken, private))
	return mux
}

const (
	defaultDecisions = 20
	maxDecisions     = 1000
)

// decisions explains one request, or shows the latest decisions.
func (s *Server) decisions(w http.ResponseWriter, r *http.Request, explain func(string, int) any) {
	query := r.URL.Query()
	latest, err := limitOf(query, defaultDecisions, maxDecisions)
	if err != nil {
		_ = s.failureOf(err).write(w)
		return
	}
	writeOps(w, http.StatusOK, explain(query.Get("request"), latest))
}

// operatorsOnly demands the token as a bearer. Without a token nobody has it.
func (s *Server) operatorsOnly(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token)) // equal lengths for a comparison in constant time
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if token == "" || !ok || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			_ = s.failureOf(because(badKey, nil)).write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// runChecks runs all at once, so that one that hangs doesn't fail the others.
func runChecks(ctx context.Context, checks []Check) (int, readiness) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	faults := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { faults[i] = c.Run(ctx) })
	}
	wg.Wait()
	status, answer := http.StatusOK, readiness{Status: "ready", Checks: make(map[string]string, len(checks))}
	for i, c := range checks {
		switch {
		case faults[i] == nil:
			answer.Checks[c.Name] = "ok"
			continue
		case c.Vital:
			status, answer.Status = http.StatusServiceUnavailable, "not ready"
		case c.Note:
		case answer.Status == "ready":
			answer.Status = "degraded"
		}
		answer.Checks[c.Name] = faults[i].Error()
	}
	return status, answer
}

func writeOps(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set(headerType, jsonType)
	w.Header().Set(headerCache, "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // whether the reader still listens changes nothing
}
