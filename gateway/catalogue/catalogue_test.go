package catalogue_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
)

const example = `apiVersion: weir/v1
bands:
  - {name: interactive, priority: 100}
  - {name: standard, priority: 0}
plans:
  basic:
    bands: {default: standard, priority: interactive}
    weight: 2
    limits: {requests_per_minute: 600, concurrency: 20}
pools:
  - name: gpu
    region: eu
    scheduler: {max_concurrency: 32, queue_ttl: 20s}
    endpoints:
      - {id: a, url: "http://10.0.0.1:8000", accelerator: H100}
      - {url: "http://10.0.0.2:8000", engine: sglang, api_key_env: ENGINE_KEY}
models:
  - name: org/chat-8b
    aliases: [chat, chat-latest]
    operations: [chat, completions]
    context_length: 32768
    routes: [{pool: gpu}]
    timeouts: {first_byte: 30s}
    chat_template_kwargs: [enable_thinking]
prices:
  - {model: org/chat-8b, input: "0.10", cached_input: "0.02", output: "0.40"}
`

func parse(t *testing.T, text string) *catalogue.Document {
	t.Helper()
	doc, warnings, err := catalogue.Parse([]byte(text))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("parse: %v, warnings %v", err, warnings)
	}
	return doc
}

func TestParseRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"an empty document":       {"", "empty"},
		"another version":         {"apiVersion: weir/v9\n", "write weir/v1"},
		"an unknown key, by line": {"apiVersion: weir/v1\nmodels:\n  - {name: a, colour: red}\n", "line 3"},
		"two documents":           {"apiVersion: weir/v1\n---\napiVersion: weir/v1\n", "one YAML document"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := catalogue.Parse([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	_, warnings, err := catalogue.Parse([]byte("apiVersion: weir/v1alpha1\n"))
	if err != nil || len(warnings) != 1 {
		t.Errorf("the old version: %v, %v", warnings, err)
	}
}

func TestValidateTellsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	doc := parse(t, `apiVersion: weir/v1
bands: [{name: a, priority: 1}, {name: b, priority: 1}]
plans: {p: {bands: {flex: nowhere}}}
pools: [{name: x, isolation: loose, endpoints: [{url: "ftp://h"}, {id: k, url: "http://u:p@h"}, {id: s, url: "http://h/v1"}]}]
models:
  - {name: m, aliases: [n], operations: [chat, sing], routes: [{pool: y}]}
  - {name: n, operations: [], routes: []}
prices: [{model: m, input: "-1", output: "1"}]
`)
	err := doc.Validate()
	for _, want := range []string{
		"same priority", "nowhere", "default", "isolation", "http://host:port", "api_key_env", "leave /v1",
		`"y", which is not under pools`, `"n" is there twice`, `"sing"`, "name what it serves", "at least one pool", "price of m",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no complaint with %q in:\n%v", want, err)
		}
	}
}

func TestApplyStoresOnceAndSaysWhatChanges(t *testing.T) {
	t.Parallel()
	db, ctx := pgtest.New(t), t.Context()
	apply := func(text string, o catalogue.Options) string {
		t.Helper()
		changes, err := catalogue.Apply(ctx, db.App, parse(t, text), o)
		if err != nil {
			t.Fatal(err)
		}
		return changes.String()
	}
	if got := apply(example, catalogue.Options{DryRun: true}); !strings.Contains(got, "+ model org/chat-8b\n") {
		t.Errorf("dry run says:\n%s", got)
	}
	first := apply(example, catalogue.Options{}) // a dry run that had stored would leave nothing to do
	for _, want := range []string{"+ band standard\n", "+ plan basic\n", "+ pool gpu\n", "+ model org/chat-8b\n", "+ price org/chat-8b (USD per million tokens, from 2", "): input 0.10, cached input 0.02, output 0.40, reasoning 0.40, flex x0.5, priority x1.75, batch x0.5, background x1\n"} {
		if !strings.Contains(first, want) {
			t.Errorf("no line %q in:\n%s", want, first)
		}
	}
	if got := apply(example, catalogue.Options{Prune: true}); got != "no changes\n" {
		t.Errorf("again:\n%s", got)
	}
	moved := strings.ReplaceAll(example, "10.0.0.1:8000", "10.0.0.9:8000")
	moved = strings.ReplaceAll(moved, `output: "0.40"`, `output: "0.50"`)
	if got := apply(moved, catalogue.Options{}); !strings.Contains(got, "~ pool gpu: endpoints.a.url http://10.0.0.1:8000 -> http://10.0.0.9:8000\n") || !strings.Contains(got, "): output 0.40 -> 0.50, reasoning 0.40 -> 0.50\n") {
		t.Errorf("moved:\n%s", got)
	}
	alone := "apiVersion: weir/v1\nbands: [{name: night, priority: -5}]\n"
	if got := apply(alone, catalogue.Options{}); got != "+ band night\n" {
		t.Errorf("what it doesn't name stays:\n%s", got)
	}
	if got := apply(moved, catalogue.Options{Prune: true}); got != "- band night\n" {
		t.Errorf("pruned:\n%s", got)
	}
	if _, err := catalogue.Apply(ctx, db.App, parse(t, "apiVersion: weir/v1\nprices: [{model: nobody, input: \"1\", output: \"1\"}]\n"), catalogue.Options{}); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a stray price: %v", err)
	}
}

func TestWhatIsStoredIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	db, ctx := pgtest.New(t), t.Context()
	doc := parse(t, example)
	if _, err := catalogue.Apply(ctx, db.App, doc, catalogue.Options{}); err != nil {
		t.Fatal(err)
	}
	snap, err := catalogue.Load(ctx, db.App)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(doc.Models, snap.Document().Models, cmpopts.IgnoreFields(catalogue.Model{}, "Created")); d != "" {
		t.Errorf("models (-written +stored):\n%s", d)
	}
	if d := cmp.Diff(doc.Pools, snap.Document().Pools); d != "" {
		t.Errorf("pools (-written +stored):\n%s", d)
	}
	if d := cmp.Diff(doc.Plans, snap.Document().Plans); d != "" {
		t.Errorf("plans (-written +stored):\n%s", d)
	}
	m, ok := snap.Lookup("chat-latest")
	if !ok || m.Name != "org/chat-8b" || m.Timeouts.FirstByte != 30*time.Second {
		t.Errorf("by alias: %+v, %v", m, ok)
	}
	if p, ok := snap.Band("interactive"); !ok || p != 100 {
		t.Errorf("band: %d, %v", p, ok)
	}
	if _, ok := snap.Prices.Rate("org/chat-8b", "", time.Now()); !ok {
		t.Error("no price")
	}
	again, err := catalogue.Apply(ctx, db.App, snap.Document(), catalogue.Options{Prune: true})
	if err != nil || len(again) > 0 {
		t.Errorf("applying what is stored: %v, %v", again, err)
	}
}

func TestStoreFollowsChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	store := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
	if err := store.Load(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	if _, err := catalogue.Apply(ctx, db.App, parse(t, example), catalogue.Options{}); err != nil {
		t.Fatal(err)
	}
	for {
		changed := store.Changed()
		if _, ok := store.Snapshot().Lookup("chat"); ok {
			break
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("the change did not arrive")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAModelWasCreatedWhenItWasFirstApplied(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	created := func() int64 {
		t.Helper()
		snap, err := catalogue.Load(t.Context(), db.App)
		if err != nil {
			t.Fatal(err)
		}
		m, ok := snap.Lookup("org/chat-8b")
		if !ok {
			t.Fatal("the model is gone")
		}
		return m.Created
	}
	before := time.Now().Add(-time.Minute).Unix() // the database has a clock of its own
	mustApply(t, db, example, catalogue.Options{})
	first := created()
	if first < before || first > before+600 {
		t.Errorf("created %d, first applied about %d", first, before+60)
	}
	if _, err := db.Owner.Exec(t.Context(), `UPDATE models SET body = jsonb_set(body, '{created}', '1700000000')`); err != nil {
		t.Fatal(err)
	}
	mustApply(t, db, strings.ReplaceAll(example, "chat-latest]", "chat-latest, chat-newest]"), catalogue.Options{Prune: true})
	if got := created(); got != 1700000000 {
		t.Errorf("a later apply moved it to %d", got)
	}
}
