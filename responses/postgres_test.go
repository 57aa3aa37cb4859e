package responses_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/migrations/pgtest"
	"weir/responses"
	"weir/tenants"
)

// house is a database with a tenant of two projects, another tenant, and
// stores on it, one with a memory and one without.
type house struct {
	db       *pgtest.DB
	store    *responses.Postgres
	fresh    *responses.Postgres // another replica, which remembers nothing
	vault    *tenants.Vault
	mine     responses.Owner
	sibling  responses.Owner // another project of the tenant
	stranger responses.Owner
}

func newHouse(tb testing.TB) *house {
	tb.Helper()
	db := pgtest.New(tb)
	peppers, err := tenants.ParsePeppers("1:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)))
	if err != nil {
		tb.Fatal(err)
	}
	masters, err := tenants.ParseMasterKeys("1:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{2}, 32)))
	if err != nil {
		tb.Fatal(err)
	}
	err = pgx.BeginFunc(tb.Context(), db.App, func(tx pgx.Tx) error {
		return tenants.PutPlans(tb.Context(), tx, map[string]tenants.Plan{"p": {
			Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}, Weight: 1, Fairness: tenants.FairnessTenant,
		}})
	})
	if err != nil {
		tb.Fatal(err)
	}
	people := tenants.NewStore(db.App, peppers, time.Now)
	h := &house{db: db}
	for i, at := range []*responses.Owner{&h.mine, &h.stranger} {
		ten, prj, err := people.CreateTenant(tb.Context(), "operator:test", fmt.Sprint("t", i), "p")
		if err != nil {
			tb.Fatal(err)
		}
		*at = responses.Owner{Tenant: ten.ID, Project: prj.ID}
	}
	h.sibling = responses.Owner{Tenant: h.mine.Tenant, Project: "prj_other"}
	if h.vault, err = tenants.NewVault(db.App, masters); err != nil {
		tb.Fatal(err)
	}
	h.store = responses.NewPostgres(db.App, h.vault, 1<<20, time.Now)
	h.fresh = responses.NewPostgres(db.App, h.vault, 0, time.Now)
	return h
}

// keep stores a record as the settle writer would.
func (h *house) keep(tb testing.TB, r *responses.Record) {
	tb.Helper()
	if err := h.settle(tb.Context(), r); err != nil {
		tb.Fatal(err)
	}
}

func (h *house) settle(ctx context.Context, r *responses.Record) error {
	effect, err := h.store.Save(ctx, r)
	if err != nil {
		return err
	}
	var b pgx.Batch
	effect(&b)
	return h.db.Worker.SendBatch(ctx, &b).Close()
}

func items(tb testing.TB, input string) []responses.Item {
	tb.Helper()
	list, err := responses.ParseInput("input", gjson.Parse(input))
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

// turn is a record that goes on from another.
func (h *house) turn(tb testing.TB, previous string, n int) *responses.Record {
	tb.Helper()
	id := responses.NewID()
	root := previous
	if root == "" {
		root = id
	}
	return &responses.Record{
		ID: id, Owner: h.mine, Key: "key_1", Previous: previous, Root: root, Turn: n,
		Status: responses.Completed, Model: "m", CreatedAt: time.Now(), Object: []byte(`{"id":"` + id + `"}`),
		Input:  items(tb, fmt.Sprintf(`[{"role":"user","content":"question %d"}]`, n)),
		Output: items(tb, fmt.Sprintf(`[{"role":"assistant","content":"answer %d"}]`, n)),
	}
}

func (h *house) chain(tb testing.TB, turns int) []string {
	tb.Helper()
	var ids []string
	previous := ""
	for n := 1; n <= turns; n++ {
		r := h.turn(tb, previous, n)
		h.keep(tb, r)
		previous = r.ID
		ids = append(ids, r.ID)
	}
	return ids
}

func texts(h *responses.History) []string {
	var all []string
	for _, it := range h.Items {
		all = append(all, gjson.GetBytes(it.JSON, "content.0.text").Str)
	}
	return all
}

func TestAChainOfTwoHundredTurnsStoresTwoHundredTurns(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ids := h.chain(t, 200)
	for name, store := range map[string]*responses.Postgres{"first": h.store, "from memory": h.store, "another replica": h.fresh} {
		got, err := store.History(t.Context(), h.mine, ids[199])
		if err != nil {
			t.Fatal(err)
		}
		all := texts(got)
		if len(all) != 400 || all[0] != "question 1" || all[399] != "answer 200" || got.Turn != 201 {
			t.Errorf("%s: %d items, turn %d, last %q", name, len(all), got.Turn, all[len(all)-1])
		}
	}
	var rows int
	if err := h.db.Admin(t).QueryRow(t.Context(), `SELECT count(*) FROM response_items`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if rows != 400 {
		t.Errorf("%d rows of items for 200 turns of two", rows)
	}
}

func TestForeignAndAbsentResponsesLookAlike(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	r := h.turn(t, "", 1)
	h.keep(t, r)
	if _, err := h.store.History(t.Context(), h.mine, r.ID); err != nil { // it is remembered now
		t.Fatal(err)
	}
	for name, o := range map[string]responses.Owner{"another tenant": h.stranger, "another project": h.sibling} {
		if _, err := h.store.History(t.Context(), o, r.ID); !errors.Is(err, responses.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := h.store.Item(t.Context(), o, r.Input[0].ID); !errors.Is(err, responses.ErrNotFound) {
			t.Errorf("%s finds an item: %v", name, err)
		}
	}
	if _, err := h.store.History(t.Context(), h.mine, responses.NewID()); !errors.Is(err, responses.ErrNotFound) {
		t.Errorf("an id that was never made: %v", err)
	}
	it, err := h.store.Item(t.Context(), h.mine, r.Output[0].ID)
	if err != nil || !bytes.Equal(it.JSON, r.Output[0].JSON) {
		t.Errorf("own item %s, %v", it.JSON, err)
	}
}

func TestContentIsSealedInTheDatabase(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.chain(t, 2)
	var found bool
	err := h.db.Admin(t).QueryRow(t.Context(), `
		SELECT EXISTS (SELECT FROM response_items WHERE position('question'::bytea IN content) > 0)
		    OR EXISTS (SELECT FROM responses WHERE position('resp_'::bytea IN object) > 0)`).Scan(&found)
	if err != nil {
		t.Fatal(err)
	}
	if found {
		t.Error("content stands there in clear")
	}
}
