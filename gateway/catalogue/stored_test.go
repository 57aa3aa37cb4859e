package catalogue_test

import (
	"testing"

	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
)

// What earlier releases stored is read as it was meant, and kept as it is.
func TestAnOlderCatalogueStillLoads(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, sql := range []string{
		`INSERT INTO bands (name, priority) VALUES ('standard', 0)`,
		`INSERT INTO pools (name, body) VALUES ('gpu', '{"name": "gpu", "region": "eu", "isolation": "verified", "endpoints": [], "scheduler": {"max_concurrency": 32, "max_flow_queued": 7, "queue_ttl": "20s"}}')`,
		`INSERT INTO pools (name, body) VALUES ('plain', '{"name": "plain", "scheduler": {}, "endpoints": []}')`,
		`INSERT INTO models (name, body) VALUES ('m', '{"name": "m", "created": 1, "operations": ["chat"], "engine_model": "m", "timeouts": {}, "routes": [{"pool": "gpu", "weight": 3}, {"pool": "plain", "weight": 1}]}')`,
		`INSERT INTO model_names (name, model) VALUES ('m', 'm')`,
	} {
		if _, err := db.App.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	snap, err := catalogue.Load(t.Context(), db.App)
	if err != nil {
		t.Fatal(err)
	}
	if c := snap.Scheduler("gpu").Config; c.MaxConcurrency != 32 || c.MaxFlowQueued != 7 || c.TTL.Seconds() != 20 {
		t.Errorf("%+v", c)
	}
	if m, ok := snap.Lookup("m"); !ok || len(m.Routes) != 2 || m.Routes[0].Weight != 3 || m.Routes[1].SpillWhen != nil {
		t.Errorf("%+v", m)
	}
	if err := snap.Document().Validate(); err != nil {
		t.Error(err)
	}
	same := "apiVersion: weir/v1\npools:\n  - {name: gpu, region: eu, isolation: verified, endpoints: [], scheduler: {max_concurrency: 32, max_flow_queued: 7, queue_ttl: 20s}}\n" +
		"models:\n  - {name: m, operations: [chat], routes: [{pool: gpu, weight: 3}, {pool: plain}]}\n"
	if got := mustApply(t, db, same, catalogue.Options{DryRun: true}); got != "no changes\n" {
		t.Errorf("the same once more: %s", got)
	}
}
