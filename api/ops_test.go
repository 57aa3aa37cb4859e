package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func newOpsServer(token string, checks ...Check) *Server {
	registry := prometheus.NewRegistry()
	return New(slog.New(slog.DiscardHandler), Deps{
		Config: Config{OpsToken: token}, Keys: newKeyring(), Gateway: runner(respond),
		Catalogue:  func() Catalogue { return newShop() },
		Registerer: registry, Gatherer: registry, Checks: checks,
		Pools:     func() any { return []string{"main"} },
		Decisions: func(request string, latest int) any { return map[string]any{"request": request, "latest": latest} },
	})
}

func ask(t *testing.T, h http.Handler, path, authorization string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestTheOperatorsPagesNeedTheToken(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, token, authorization string
		status                     int
	}{
		{"the token", "s3cret", "Bearer s3cret", 200},
		{"another", "s3cret", "Bearer s3creT", 401},
		{"a part of it", "s3cret", "Bearer s3cre", 401},
		{"none", "s3cret", "", 401},
		{"without scheme", "s3cret", "s3cret", 401},
		{"an API key", "s3cret", "Bearer good", 401},
		{"no token set, none sent", "", "", 401},
		{"no token set, an empty one sent", "", "Bearer ", 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newOpsServer(tt.token)
			for _, path := range []string{"/ops/v1/pools", "/ops/v1/decisions", "/ops/v1/other"} {
				w := ask(t, s.Ops(), path, tt.authorization)
				want := tt.status
				if want == http.StatusOK && path == "/ops/v1/other" {
					want = http.StatusNotFound
				}
				if w.Code != want {
					t.Errorf("%s: want %d, got %d", path, want, w.Code)
				}
			}
			if w := ask(t, s.Handler(), "/ops/v1/pools", tt.authorization); w.Code != http.StatusNotFound {
				t.Errorf("the public listener has it: %d", w.Code)
			}
		})
	}
	if w := ask(t, newOpsServer("x").Ops(), "/ops/v1/pools", "Bearer x"); strings.TrimSpace(w.Body.String()) != `{"pools":["main"]}` {
		t.Errorf("got %s", w.Body)
	}
}

func TestDecisionsAreAskedForByRequestOrNumber(t *testing.T) {
	t.Parallel()
	s := newOpsServer("x")
	for path, want := range map[string]string{
		"/ops/v1/decisions":               `{"latest":20,"request":""}`,
		"/ops/v1/decisions?limit=1000":    `{"latest":1000,"request":""}`,
		"/ops/v1/decisions?request=req_1": `{"latest":20,"request":"req_1"}`,
	} {
		if w := ask(t, s.Ops(), path, "Bearer x"); w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, limit := range []string{"0", "1001", "-1", "x"} {
		if w := ask(t, s.Ops(), "/ops/v1/decisions?limit="+limit, "Bearer x"); w.Code != http.StatusBadRequest {
			t.Errorf("limit %s: %d", limit, w.Code)
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	good := func(context.Context) error { return nil }
	bad := func(context.Context) error { return errors.New("away") }
	tests := []struct {
		name   string
		checks []Check
		status int
		want   readiness
	}{
		{"nothing to check", nil, 200, readiness{"ready", map[string]string{}}},
		{"all well", []Check{{Name: "a", Vital: true, Run: good}, {Name: "b", Vital: false, Run: good}}, 200, readiness{"ready", map[string]string{"a": "ok", "b": "ok"}}},
		{"degraded", []Check{{Name: "a", Vital: true, Run: good}, {Name: "b", Vital: false, Run: bad}}, 200, readiness{"degraded", map[string]string{"a": "ok", "b": "away"}}},
		{"a note", []Check{{Name: "a", Vital: true, Run: good}, {Name: "b", Note: true, Run: bad}}, 200, readiness{"ready", map[string]string{"a": "ok", "b": "away"}}},
		{"not ready", []Check{{Name: "a", Vital: true, Run: bad}, {Name: "b", Vital: false, Run: good}}, 503, readiness{"not ready", map[string]string{"a": "away", "b": "ok"}}},
		{"both", []Check{{Name: "a", Vital: true, Run: bad}, {Name: "b", Vital: false, Run: bad}}, 503, readiness{"not ready", map[string]string{"a": "away", "b": "away"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := ask(t, newOpsServer("", tt.checks...).Ops(), "/readyz", "")
			var got readiness
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || w.Code != tt.status {
				t.Errorf("status %d (-want +got)\n%s", w.Code, diff)
			}
		})
	}
}

func TestACheckThatHangsIsCutAndFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		status, got := runChecks(t.Context(), []Check{
			{Name: "hangs", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
			{Name: "well", Vital: true, Run: func(context.Context) error { return nil }},
		})
		if status != http.StatusOK || got.Status != "degraded" || got.Checks["well"] != "ok" {
			t.Errorf("%d %+v", status, got)
		}
	})
}

func TestProfilesAreTheOperatorsAlone(t *testing.T) {
	t.Parallel()
	s := newOpsServer("s3cret")
	for _, page := range []string{"heap", "goroutine", "allocs", "profile?seconds=1"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			path := "/ops/v1/pprof/" + page
			if w := ask(t, s.Ops(), path, "Bearer s3cret"); w.Code != http.StatusOK || w.Body.Len() == 0 {
				t.Errorf("with the token: %d and %d bytes", w.Code, w.Body.Len())
			}
			if w := ask(t, s.Ops(), path, ""); w.Code != http.StatusUnauthorized {
				t.Errorf("without: %d", w.Code)
			}
			if w := ask(t, s.Handler(), path, "Bearer s3cret"); w.Code != http.StatusNotFound {
				t.Errorf("the public listener has it: %d", w.Code)
			}
		})
	}
}

func TestHealthAndMetricsAreOpen(t *testing.T) {
	t.Parallel()
	s := newOpsServer("")
	if w := ask(t, s.Ops(), "/healthz", ""); w.Code != http.StatusOK {
		t.Errorf("healthz: %d", w.Code)
	}
	ask(t, s.Handler(), "/nowhere", "")
	if w := ask(t, s.Ops(), "/metrics", ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `weir_http_requests_total{route="none",status="404"} 1`) {
		t.Errorf("metrics: %d %s", w.Code, w.Body)
	}
}
