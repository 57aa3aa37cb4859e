package catalogue_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
	"weir/tenants"
)

var update = flag.Bool("update", false, "write the golden files anew")

// full has every key that the document knows.
const full = `apiVersion: weir/v1
bands:
  - {name: interactive, priority: 100}
  - {name: standard, priority: 0}
  - {name: batch, priority: -10}
plans:
  team:
    bands: {default: standard, priority: interactive, flex: batch, batch: batch, background: batch}
    weight: 3
    fairness: project
    limits: {requests_per_minute: 6000, tokens_per_minute: 2000000, concurrency: 200}
    key_limits: {requests_per_minute: 600, tokens_per_minute: 200000, concurrency: 20}
    retention_days: 30
    reserved_tokens: 20000
    ttft_ms: 500
    regions: [eu-west, eu-north]
    isolation: verified
    when_no_scheduler: embedded
pools:
  - name: gpu
    region: eu-west
    isolation: verified
    scheduler: {max_concurrency: 32, max_queued: 500, max_band_queued: 400, max_flow_queued: 300, queue_ttl: 20s}
    endpoints:
      - {id: a, url: "https://10.0.0.1:8000", engine: vllm, accelerator: H100, role: decode, revision: r7, ranks: 2, max_concurrency: 16, api_key_env: ENGINE_KEY, ca_file: /etc/weir/ca.pem}
      - {url: "http://10.0.0.2:8000", engine: sglang}
  - name: remote
    scheduler:
      kind: llm-d
      epp: ["grpcs://epp-0:9002", "grpcs://epp-1:9002"]
      tls: {ca_file: /etc/weir/epp-ca.pem, cert_file: /etc/weir/client.pem, key_file: /etc/weir/client.key, server_name: epp}
      objectives: {interactive: gold}
      objectives_url: https://kube:6443/apis/llm-d.ai/v1alpha2/namespaces/pool/inferenceobjectives
      metrics_url: http://epp-0:9090/metrics
      allowed_destinations: [10.20.0.0/16, "engine-7:8000"]
      scheme: https
      max_concurrency: 8
    endpoints: []
  - name: spill
    isolation: single-tenant
    tenants: [ten_a]
    endpoints: []
models:
  - name: org/chat-8b
    aliases: [chat, chat-latest]
    engine_model: chat-8b-fp8
    owned_by: org
    created: 1767225600
    operations: [chat, completions]
    context_length: 32768
    max_output_tokens: 4096
    routes: [{pool: gpu, weight: 3}, {pool: spill}]
    timeouts: {connect: 2s, first_byte: 30s, idle: 15s, total: 10m}
    chat_template_kwargs: [enable_thinking]
    template: {developer_role: true, system_messages: anywhere}
    reasoning_efforts: [low, high]
    shutdown_date: 2027-01-01T00:00:00Z
  - name: embed
    operations: [embeddings]
    routes: [{pool: gpu, spill_when: {saturation: 0.9, wait: 5s}}, {pool: spill, canary: 0.05}]
prices:
  - {model: org/chat-8b, input: "0.10", cached_input: "0.02", output: "0.40", reasoning: "0.50", effective_from: 2026-01-01T00:00:00Z}
  - {model: embed, input: "0.01", output: "0", effective_from: 2026-01-01T00:00:00Z}
`

func mustApply(t *testing.T, db *pgtest.DB, text string, o catalogue.Options) string {
	t.Helper()
	changes, err := catalogue.Apply(t.Context(), db.App, parse(t, text), o)
	if err != nil {
		t.Fatal(err)
	}
	return changes.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got, -update writes it):\n%s", name, d)
	}
}

// The order of the cases counts: each builds on the one before.
func TestChangesReadAsAPersonWouldSayThem(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	edit := strings.NewReplacer(
		"{pool: gpu, weight: 3}, {pool: spill}", "{pool: spill}, {pool: gpu, weight: 3}",
		"[chat, chat-latest]", "[chat, chat-8b]",
		"https://10.0.0.1:8000", "https://10.0.0.9:8000",
		"queue_ttl: 20s", "queue_ttl: 1m",
		`"grpcs://epp-0:9002", "grpcs://epp-1:9002"`, `"grpcs://epp-1:9002", "grpcs://epp-2:9002"`,
		`- {url: "http://10.0.0.2:8000", engine: sglang}`, `- {url: "http://10.0.0.3:8000"}`,
		"weight: 3\n    fairness: project", "weight: 5\n    fairness: project",
		"priority: -10", "priority: -20",
		", role: decode", "",
	).Replace(full)
	if edit == full {
		t.Fatal("the edits changed nothing")
	}
	golden(t, "first", mustApply(t, db, full, catalogue.Options{}))
	golden(t, "edited", mustApply(t, db, edit, catalogue.Options{}))
	golden(t, "again", mustApply(t, db, edit, catalogue.Options{}))
	golden(t, "pruned", mustApply(t, db, "apiVersion: weir/v1\nbands: [{name: standard, priority: 0}]\n", catalogue.Options{Prune: true}))
}

func TestEveryKeySurvivesTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	doc := parse(t, full)
	mustApply(t, db, full, catalogue.Options{})
	snap, err := catalogue.Load(t.Context(), db.App)
	if err != nil {
		t.Fatal(err)
	}
	stored := snap.Document()
	if len(stored.Models) != 2 || len(stored.Pools) != 3 {
		t.Fatalf("stored %d models and %d pools, want 2 and 3", len(stored.Models), len(stored.Pools))
	}
	byName := map[string]catalogue.Model{}
	for _, m := range stored.Models {
		byName[m.Name] = m
	}
	for _, m := range doc.Models {
		if m.Created == 0 {
			m.Created = byName[m.Name].Created
		}
		if d := cmp.Diff(m, byName[m.Name]); d != "" {
			t.Errorf("model %s (-written +stored):\n%s", m.Name, d)
		}
	}
	for i, p := range doc.Pools {
		if len(p.Endpoints) == 0 {
			p.Endpoints = stored.Pools[i].Endpoints[:0]
		}
		if d := cmp.Diff(p, stored.Pools[i]); d != "" {
			t.Errorf("pool %s (-written +stored):\n%s", p.Name, d)
		}
	}
	if d := cmp.Diff(doc.Bands, stored.Bands); d != "" {
		t.Errorf("bands (-written +stored):\n%s", d)
	}
	if d := cmp.Diff(doc.Plans, stored.Plans); d != "" {
		t.Errorf("plans (-written +stored):\n%s", d)
	}
	at := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	if p, ok := snap.Prices.Rate("org/chat-8b", "", at); !ok || p.Input != 100_000 || p.Reasoning != 500_000 {
		t.Errorf("price = %+v, %v", p, ok)
	}
}

func TestARefusedDocumentChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustApply(t, db, full, catalogue.Options{})
	before := documentOf(t, db)
	if _, _, err := tenants.NewStore(db.App, tenants.Peppers{}, time.Now).CreateTenant(t.Context(), "test", "acme", "team"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text, want string
		prune      bool
	}{
		"an alias that another model has": {
			text: "models: [{name: other, aliases: [chat], operations: [chat], routes: [{pool: gpu}]}]", want: `"chat" is there twice`,
		},
		"a route to a pool that is nowhere": {
			text: "models: [{name: other, operations: [chat], routes: [{pool: tpu}]}]", want: `pool "tpu"`,
		},
		"a band that a plan left behind still needs": {
			text: "plans: {team: {bands: {default: standard}}}\nbands: [{name: other, priority: 0}]", want: "standard", prune: true,
		},
		"a plan that a tenant has": {
			text: "bands: [{name: standard, priority: 0}]", want: "still the plan of a tenant", prune: true,
		},
		"a price of the past": {
			text: `prices: [{model: embed, input: "9", output: "0", effective_from: 2020-01-01T00:00:00Z}]`, want: "price",
		},
		"a key variable that holds our own secret": {
			text: `pools: [{name: gpu, endpoints: [{url: "http://h:1", api_key_env: WEIR_DATABASE_URL}]}]`, want: "WEIR_",
		},
		"a total time without an end": {
			text: "models: [{name: embed, operations: [embeddings], routes: [{pool: gpu}], timeouts: {total: 1000h}}]", want: "at most",
		},
		"two routes to one pool": {
			text: "models: [{name: embed, operations: [embeddings], routes: [{pool: gpu}, {pool: gpu, weight: 2}]}]", want: "two routes",
		},
		"one server as two endpoints": {
			text: `pools: [{name: gpu, endpoints: [{id: a, url: "http://h:1"}, {id: b, url: "http://h:1"}]}]`, want: "one server is one endpoint",
		},
		"an id like that of a rank": {
			text: `pools: [{name: gpu, endpoints: [{id: "a#1", url: "http://h:1"}]}]`, want: "an id has no #",
		},
	} {
		_, err := catalogue.Apply(t.Context(), db.App, parse(t, "apiVersion: weir/v1\n"+tc.text+"\n"), catalogue.Options{Prune: tc.prune})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error = %v, want one about %q", name, err, tc.want)
		}
		if d := cmp.Diff(before, documentOf(t, db)); d != "" {
			t.Errorf("%s changed something (-before +after):\n%s", name, d)
		}
	}
}

func documentOf(t *testing.T, db *pgtest.DB) *catalogue.Document {
	t.Helper()
	snap, err := catalogue.Load(t.Context(), db.App)
	if err != nil {
		t.Fatal(err)
	}
	return snap.Document()
}

func TestADryRunStoresNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	said := mustApply(t, db, full, catalogue.Options{DryRun: true})
	if doc := documentOf(t, db); len(doc.Models)+len(doc.Pools)+len(doc.Bands)+len(doc.Plans)+len(doc.Prices) > 0 {
		t.Errorf("a dry run stored %+v", doc)
	}
	if did := mustApply(t, db, full, catalogue.Options{}); did != said {
		t.Errorf("it does\n%snot what the dry run said:\n%s", did, said)
	}
}

func TestOfManyAppliesAtOnceOneChangesSomething(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	docs := make([]*catalogue.Document, 4)
	for i := range docs {
		docs[i] = parse(t, full)
	}
	changed := make([]bool, len(docs))
	var wg sync.WaitGroup
	for i, doc := range docs {
		wg.Go(func() {
			changes, err := catalogue.Apply(t.Context(), db.App, doc, catalogue.Options{})
			if err != nil {
				t.Errorf("apply: %v", err)
			}
			changed[i] = len(changes) > 0
		})
	}
	wg.Wait()
	n := 0
	for _, c := range changed {
		if c {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d of %d say that they changed something, want 1", n, len(docs))
	}
}

func TestDurationsNeedAUnit(t *testing.T) {
	t.Parallel()
	_, _, err := catalogue.Parse([]byte("apiVersion: weir/v1\npools:\n  - {name: a, scheduler: {queue_ttl: 20}}\n"))
	if err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("error = %v, want one that names the line", err)
	}
}
