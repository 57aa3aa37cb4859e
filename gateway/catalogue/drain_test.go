package catalogue_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
)

const drainable = `apiVersion: weir/v1
bands: [{name: standard, priority: 0}]
pools:
  - name: gpu
    endpoints: [{id: a, url: "http://a:1"DRAIN}, {id: b, url: "http://b:1"}]
  - name: cloud
    endpoints: []
    api_key_env: CLOUD_KEY
    discovery: {dns: {name: engines.example, port: 8000, scheme: https}, endpoint: {engine: sglang}LIST}
`

// draining lists the endpoints of the snapshot's pools that are drained.
func draining(s *catalogue.Snapshot, found ...string) string {
	var out []string
	for _, p := range s.Pools() {
		for _, e := range p.Endpoints {
			if p.Endpoint(e.ID).Draining() {
				out = append(out, e.ID)
			}
		}
		for _, id := range found {
			if p.Discovery != nil && p.Endpoint(id).Draining() {
				out = append(out, id)
			}
		}
	}
	return strings.Join(out, " ")
}

func TestDrainHoldsUntilSomebodySaysOtherwise(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	apply := func(drain, list string) {
		t.Helper()
		text := strings.NewReplacer("DRAIN", drain, "LIST", list).Replace(drainable)
		if _, err := catalogue.Apply(t.Context(), db.App, parse(t, text), catalogue.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	set := func(pool, endpoint string, on bool) {
		t.Helper()
		if _, err := catalogue.Drain(t.Context(), db.App, pool, endpoint, on); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, want string) {
		t.Helper()
		s, err := catalogue.Load(t.Context(), db.App)
		if err != nil {
			t.Fatal(err)
		}
		if got := draining(s, "x", "y"); got != want {
			t.Errorf("%s: draining %q, want %q", when, got, want)
		}
	}
	apply("", "")
	expect("at first", "")
	set("gpu", "a", true)
	set("cloud", "x", true)
	set("cloud", "y", true)
	set("cloud", "y", true)
	expect("drained", "x y a")
	apply("", "")
	expect("after an apply that doesn't mention it", "x y a")
	set("cloud", "x", false)
	set("cloud", "x", false)
	expect("one is back", "y a")
	apply(", drain: false", ", drain: []")
	expect("after an apply that says no", "")
	apply(", drain: true", ", drain: [x]")
	expect("after an apply that says yes", "x a")
	set("gpu", "a", false)
	set("cloud", "x", false)
	expect("the last word is the command's", "")

	if _, err := catalogue.Drain(t.Context(), db.App, "nowhere", "a", true); !errors.Is(err, catalogue.ErrNoPool) {
		t.Errorf("an unknown pool: %v", err)
	}
	if _, err := catalogue.Drain(t.Context(), db.App, "gpu", "z", true); !errors.Is(err, catalogue.ErrNoEndpoint) {
		t.Errorf("an unknown endpoint: %v", err)
	}
}

func TestDrainReachesEveryReplica(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text := strings.NewReplacer("DRAIN", "", "LIST", "").Replace(drainable)
	if _, err := catalogue.Apply(t.Context(), db.App, parse(t, text), catalogue.Options{}); err != nil {
		t.Fatal(err)
	}
	var replicas []*catalogue.Store
	for range 2 {
		s := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
		if err := s.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		replicas = append(replicas, s)
	}
	if _, err := catalogue.Drain(t.Context(), db.App, "gpu", "b", true); err != nil {
		t.Fatal(err)
	}
	for i, s := range replicas {
		for deadline := time.After(5 * time.Second); draining(s.Snapshot()) != "b"; {
			select {
			case <-deadline:
				t.Fatalf("replica %d never heard of the drain", i)
			case <-s.Changed():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func TestDiscoveredEndpointHasThePoolsKeyAndTraits(t *testing.T) {
	t.Parallel()
	s := parse(t, strings.NewReplacer("DRAIN", ", api_key_env: OWN", "LIST", ", drain: [x]").Replace(drainable)).Snapshot(nil)
	cloud, _ := s.Pool("cloud")
	x := cloud.Endpoint("x")
	if x.APIKeyEnv != "CLOUD_KEY" || x.Engine != "sglang" || x.ServerName != "engines.example" || !x.Draining() {
		t.Errorf("a discovered endpoint: %+v", x)
	}
	if y := cloud.Endpoint("y"); y.Draining() {
		t.Error("the other one drains too")
	}
	gpu, _ := s.Pool("gpu")
	if a, z := gpu.Endpoint("a"), gpu.Endpoint("z"); a.APIKeyEnv != "OWN" || z.APIKeyEnv != "" || z.URL != "" {
		t.Errorf("listed: %+v, unknown: %+v", a, z)
	}
	if !cloud.RunsOn("sglang") || cloud.RunsOn("vllm") || !gpu.RunsOn("vllm") {
		t.Error("the engines are mixed up")
	}
}

func TestDiscoveryAndScalingAreChecked(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, settings, want string }{
		{"neither file nor dns", "discovery: {}", "one of file and dns"},
		{"both", "discovery: {file: {path: f}, dns: {name: n, port: 1}}", "one of file and dns"},
		{"a file without a path", "discovery: {file: {}}", "path is missing"},
		{"a scheme of the file", "discovery: {file: {path: f, scheme: ftp}}", "scheme"},
		{"a name without a port", "discovery: {dns: {name: n}}", "port is 0"},
		{"SRV records with a port", "discovery: {dns: {name: n, port: 1, srv: true}}", "leave port out"},
		{"no name", "discovery: {dns: {port: 1}}", "name is missing"},
		{"questions too often", "discovery: {dns: {name: n, port: 1, interval: 10ms}}", "at least 1s"},
		{"one endpoint's url for all", "discovery: {dns: {name: n, port: 1}, endpoint: {url: 'http://h'}}", "not of all"},
		{"our secret as key", "discovery: {dns: {name: n, port: 1}, endpoint: {api_key_env: WEIR_OPS_TOKEN}}", "hold our own secrets"},
		{"our secret as the pool's key", "api_key_env: WEIR_OPS_TOKEN", "hold our own secrets"},
		{"an engine that isn't one", "discovery: {dns: {name: n, port: 1}, endpoint: {engine: steam}}", "engine"},
		{"scrapes without a pause", "scrape_interval: 1ms", "scrape_interval"},
		{"no maximum", "scaling: {min: 1}", "min 1, max 0"},
		{"more than the maximum", "scaling: {min: 3, max: 2}", "min 3, max 2"},
		{"a cache more than full", "scaling: {max: 2, target_kv_usage: 80}", "target_kv_usage"},
		{"a negative aim", "scaling: {max: 2, ttft_slo: -1s}", "negative"},
		{"a role twice", "scaling: {max: 2, roles: [a, a]}", "twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := parse(t, "apiVersion: weir/v1\npools: [{name: p, endpoints: [], "+tt.settings+"}]\n").Validate()
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "pool p") {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	for _, good := range []string{
		"discovery: {dns: {name: _http._tcp.engines.example, srv: true}}",
		"discovery: {file: {path: /f}, endpoint: {accelerator: v6e, max_concurrency: 8, max_tokens: 100000, speed: 9000.5, cache_blocks: 5000, labels: {zone: b}}}",
		"scaling: {max: 1}, scrape_interval: 50ms, ca_file: /ca.pem",
	} {
		if err := parse(t, "apiVersion: weir/v1\npools: [{name: p, endpoints: [], "+good+"}]\n").Validate(); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}
