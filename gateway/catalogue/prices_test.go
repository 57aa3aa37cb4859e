package catalogue_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/billing"
	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
	"weir/tenants"
)

// publish puts a price of one tenant's own, made of the rates of input and output.
func publish(t *testing.T, db *pgtest.DB, tenant tenants.ID, spec billing.PriceSpec) {
	t.Helper()
	err := tenants.InTenant(t.Context(), db.App, tenant, func(tx pgx.Tx) error {
		_, err := catalogue.PublishPrices(t.Context(), tx, tenant, []billing.PriceSpec{spec})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunningStoresFollowTenantsOwnPrices(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustApply(t, db, example, catalogue.Options{})
	for _, id := range []string{"ten_a", "ten_b"} {
		if _, err := db.Admin(t).Exec(t.Context(), `INSERT INTO tenants (id, name, plan, fairness_id) VALUES ($1, $1, 'basic', $1)`, id); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	store := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
	if err := store.Load(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	pays := func(tenant tenants.ID, want string) {
		t.Helper()
		for {
			changed := store.Changed()
			p, ok := store.Snapshot().Prices.Rate("org/chat-8b", tenant, time.Now())
			if ok && billing.FormatUSD(p.Input) == want {
				return
			}
			select {
			case <-changed:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s pays %+v, want %s", tenant, p, want)
			}
		}
	}
	rates := func(input string) billing.PriceSpec {
		return billing.PriceSpec{Model: "org/chat-8b", Input: input, Output: "1"}
	}
	publish(t, db, "ten_a", rates("0.05"))
	pays("ten_a", "0.05")
	pays("ten_b", "0.10")
	publish(t, db, "ten_b", rates("0.07"))
	pays("ten_b", "0.07")
	mustApply(t, db, strings.ReplaceAll(example, `input: "0.10"`, `input: "0.30"`), catalogue.Options{})
	pays("", "0.30")
	pays("ten_a", "0.05")
	publish(t, db, "ten_a", billing.PriceSpec{Model: "org/chat-8b", ListPrice: true})
	pays("ten_a", "0.30")
	pays("ten_b", "0.07")
}

func TestNothingIsSoldWithoutAPriceWhereRequestsAreBilled(t *testing.T) {
	t.Parallel()
	priceless := example[:strings.Index(example, "prices:")]
	price := func(text string) string { return priceless + "prices: [{model: org/chat-8b, " + text + "}]\n" }
	for name, tt := range map[string]struct {
		text string
		want string // in the error; "": none
	}{
		"no price":                     {priceless, "model org/chat-8b: it has no price"},
		"a price":                      {example, ""},
		"free on purpose":              {price("free: true"), ""},
		"a price to come":              {price(`input: "1", output: "1", effective_from: 2099-01-01T00:00:00Z`), "model org/chat-8b: it has no price"},
		"a model that is sold no more": {strings.Replace(priceless, "routes: [{pool: gpu}]", "routes: [{pool: gpu}]\n    shutdown_date: 2020-01-01T00:00:00Z", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			_, err := catalogue.Apply(t.Context(), db.App, parse(t, tt.text), catalogue.Options{Billed: true})
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Fatalf("error = %v, want one about %q", err, tt.want)
			case tt.want != "" && len(documentOf(t, db).Models) > 0:
				t.Error("it was stored all the same")
			}
			var warned []string
			_, err = catalogue.Apply(t.Context(), db.App, parse(t, tt.text), catalogue.Options{Warn: func(w string) { warned = append(warned, w) }})
			if err != nil || (len(warned) > 0) != (tt.want != "") {
				t.Errorf("where nothing is billed: %v, warnings %q", err, warned)
			}
		})
	}
}
