package replay_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/gateway/replay"
	"weir/gateway/replica"
	"weir/migrations/pgtest"
	"weir/tenants"
)

// house is a database with a tenant, and a replica that lives.
type house struct {
	*replay.Store
	db      *pgtest.DB
	tenant  tenants.ID
	project tenants.ProjectID
	replica *replica.Register
}

func newHouse(t *testing.T) *house {
	t.Helper()
	db := pgtest.New(t)
	h := &house{db: db, replica: replica.NewRegister(slog.New(slog.DiscardHandler), db.Worker, replica.Config{})}
	if err := h.replica.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
		return tenants.PutPlans(t.Context(), tx, map[string]tenants.Plan{"basic": {
			Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}, Weight: 1, Fairness: tenants.FairnessTenant,
		}})
	})
	if err != nil {
		t.Fatal(err)
	}
	tenant, project, err := tenants.NewStore(db.App, tenants.Peppers{}, time.Now).CreateTenant(t.Context(), "operator:test", "Acme", "basic")
	if err != nil {
		t.Fatal(err)
	}
	h.tenant, h.project = tenant.ID, project.ID
	h.Store = h.open(t, replay.Config{})
	return h
}

func (h *house) open(t *testing.T, cfg replay.Config) *replay.Store {
	t.Helper()
	cfg.Replica = h.replica.ID()
	if cfg.Steady == nil {
		cfg.Steady = func() bool { return true }
	}
	masters, err := tenants.ParseMasterKeys("1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
	if err != nil {
		t.Fatal(err)
	}
	vault, err := tenants.NewVault(h.db.App, masters)
	if err != nil {
		t.Fatal(err)
	}
	return replay.New(slog.New(slog.DiscardHandler), h.db.Worker, vault, cfg)
}

func (h *house) asked(request, key string) *replay.Asked {
	return &replay.Asked{Tenant: h.tenant, Project: h.project, Key: key, Print: sha256.Sum256([]byte("hi")), Request: request}
}

func (h *house) want(t *testing.T, a *replay.Asked, want replay.Outcome) replay.Answer {
	t.Helper()
	got, answer, err := h.Claim(t.Context(), a)
	if err != nil || got != want {
		t.Errorf("%s with key %s is %q (%v), want %q", a.Request, a.Key, got, err, want)
	}
	return answer
}

func TestOneOfManyIsRunAndTheRestGetItsAnswer(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var claimed atomic.Int32
	var wg sync.WaitGroup
	var winner atomic.Pointer[replay.Asked]
	for i := range 20 {
		wg.Go(func() {
			a := h.asked(fmt.Sprint("req_", i), "k")
			switch outcome, _, err := h.Claim(t.Context(), a); {
			case err != nil:
				t.Error(err)
			case outcome == replay.Claimed:
				claimed.Add(1)
				winner.Store(a)
			case outcome != replay.Running:
				t.Errorf("outcome %q", outcome)
			}
		})
	}
	wg.Wait()
	if claimed.Load() != 1 {
		t.Fatalf("%d of 20 at once were claimed", claimed.Load())
	}
	first := winner.Load()
	if err := h.Keep(t.Context(), first, "application/json", []byte(`{"a":"secret words"}`)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a := h.want(t, h.asked("req_again", "k"), replay.Done)
		if string(a.Body) != `{"a":"secret words"}` || a.Type != "application/json" || a.Request != first.Request {
			t.Errorf("answer %+v", a)
		}
	}
	var plain int
	if err := h.db.Admin(t).QueryRow(t.Context(), `
		SELECT count(*) FROM kept_answers WHERE position('secret words'::bytea IN body) > 0`).Scan(&plain); err != nil || plain > 0 {
		t.Errorf("%d answers are readable in the database (%v)", plain, err)
	}
}

func TestWhatBecomesOfAKey(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		before func(t *testing.T, h *house, first *replay.Asked)
		next   func(a *replay.Asked)
		want   replay.Outcome
	}{
		{"another request under it", func(*testing.T, *house, *replay.Asked) {}, func(a *replay.Asked) { a.Print = sha256.Sum256([]byte("else")) }, replay.Other},
		{"the same key in another project", func(*testing.T, *house, *replay.Asked) {}, func(a *replay.Asked) { a.Project = "prj_other" }, replay.Claimed},
		{"another key", func(*testing.T, *house, *replay.Asked) {}, func(a *replay.Asked) { a.Key = "k2" }, replay.Claimed},
		{
			"the first failed",
			func(t *testing.T, h *house, first *replay.Asked) {
				t.Helper()
				if err := h.Drop(t.Context(), first); err != nil {
					t.Error(err)
				}
			},
			func(*replay.Asked) {}, replay.Claimed,
		},
		{
			"the answer was not kept",
			func(t *testing.T, h *house, first *replay.Asked) {
				t.Helper()
				if err := h.Keep(t.Context(), first, "", nil); err != nil {
					t.Error(err)
				}
			},
			func(*replay.Asked) {}, replay.Bare,
		},
		{
			"a day later",
			func(t *testing.T, h *house, _ *replay.Asked) {
				t.Helper()
				h.exec(t, `UPDATE kept_answers SET expires_at = now()`)
			},
			func(*replay.Asked) {}, replay.Claimed,
		},
		{
			"the answer follows what was said without it",
			func(t *testing.T, h *house, first *replay.Asked) {
				t.Helper()
				for _, body := range [][]byte{nil, []byte("{}"), nil} { // the last was owed
					if err := h.Keep(t.Context(), first, "application/json", body); err != nil {
						t.Error(err)
					}
				}
			},
			func(*replay.Asked) {}, replay.Done,
		},
		{
			"an answer that was not kept can't fail any more",
			func(t *testing.T, h *house, first *replay.Asked) {
				t.Helper()
				if err := errors.Join(h.Keep(t.Context(), first, "", nil), h.Drop(t.Context(), first)); err != nil {
					t.Error(err)
				}
			},
			func(*replay.Asked) {}, replay.Bare,
		},
		{
			"its content was erased",
			func(t *testing.T, h *house, first *replay.Asked) {
				t.Helper()
				if err := h.Keep(t.Context(), first, "application/json", []byte("{}")); err != nil {
					t.Error(err)
				}
				h.exec(t, `DELETE FROM data_keys`)
				h.Store = h.open(t, replay.Config{}) // which remembers no key
			},
			func(*replay.Asked) {}, replay.Bare,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			first := h.asked("req_1", "k")
			h.want(t, first, replay.Claimed)
			tt.before(t, h, first)
			next := h.asked("req_2", "k")
			tt.next(next)
			h.want(t, next, tt.want)
			if tt.want == replay.Claimed && next.Key == "k" && next.Project == first.Project {
				// The one that was given up can't end the claim of its successor.
				if err := h.Drop(t.Context(), first); err != nil {
					t.Error(err)
				}
				h.want(t, h.asked("req_3", "k"), replay.Running)
			}
		})
	}
}

// A request whose replica may be dead is not run beside it, nor before what that
// left is settled under the old id.
func TestAKeyIsInUseUntilWhatItsReplicaLeftIsSettled(t *testing.T) {
	t.Parallel()
	const (
		silent    = `INSERT INTO replicas (id, seen_at) VALUES ('rep_old', now() - interval '2 years')`
		stopped   = `INSERT INTO replicas (id, stopped_at) VALUES ('rep_old', now())`
		forgotten = ``
	)
	tests := []struct {
		name     string
		replica  string
		settled  bool
		unsent   bool // the sweeper found that no model server had it
		dead     time.Duration
		unsteady bool
		want     replay.Outcome
	}{
		{name: "forgotten, and nothing was settled", replica: forgotten, want: replay.Claimed},
		{name: "forgotten after it was settled", replica: forgotten, settled: true, want: replay.Lost},
		{name: "forgotten, and what was settled is that no model server had it", replica: forgotten, settled: true, unsent: true, want: replay.Claimed},
		{name: "forgotten, and we can't tell", replica: forgotten, unsteady: true, want: replay.Running},
		{name: "stopped just now", replica: stopped, want: replay.Running},
		{name: "stopped just now, and its answer may still come", replica: stopped, settled: true, want: replay.Running},
		{name: "silent for longer than anything takes", replica: silent, dead: time.Millisecond, want: replay.Claimed},
		{name: "silent for longer, and it was settled", replica: silent, dead: time.Millisecond, settled: true, want: replay.Lost},
		{name: "silent for longer, and we can't tell", replica: silent, dead: time.Millisecond, settled: true, unsteady: true, want: replay.Running},
		{name: "silent while the database was down", replica: silent, dead: 365 * 24 * time.Hour, want: replay.Running},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			first := h.asked("req_1", "k")
			h.want(t, first, replay.Claimed)
			h.exec(t, `UPDATE kept_answers SET replica = 'rep_old'`)
			if tt.replica != forgotten {
				h.exec(t, tt.replica)
			}
			if tt.settled {
				h.exec(t, `INSERT INTO receipt_ids (tenant_id, request_id, settled_at) VALUES ($1, $2, now())`, first.Tenant, first.Request)
			}
			if tt.unsent {
				h.exec(t, `
					INSERT INTO receipts (tenant_id, settled_at, request_id, client_request_id, project_id, key_id, operation, model, pool, endpoint,
						attempts, stream, band, priority, tier, input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
						started_at, queue_us, ttft_us, duration_us, outcome)
					SELECT tenant_id, settled_at, request_id, '', '', '', 'chat', 'm', '', '', 0, false, '', 0, '', 0, 0, 0, 0, 'none', 0, 0,
						now(), 0, 0, 0, 'orphaned'
					  FROM receipt_ids`)
			}
			h.Store = h.open(t, replay.Config{Dead: tt.dead, Steady: func() bool { return !tt.unsteady }})
			h.want(t, h.asked("req_2", "k"), tt.want)
			if tt.want != replay.Running {
				return
			}
			if err := h.Keep(t.Context(), first, "application/json", []byte("{}")); err != nil {
				t.Error(err)
			}
			h.want(t, h.asked("req_3", "k"), replay.Done) // it lived
		})
	}
}

func (h *house) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := h.db.Admin(t).Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func TestClaimsThatPostgresDidNotHearTheEndOfAreEndedLater(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.Store = h.open(t, replay.Config{Retry: 20 * time.Millisecond})
	kept, dropped := h.asked("req_1", "kept"), h.asked("req_2", "dropped")
	h.want(t, kept, replay.Claimed)
	h.want(t, dropped, replay.Claimed)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Keep(gone, kept, "application/json", nil); err == nil {
		t.Error("kept without Postgres")
	}
	if err := h.Drop(gone, dropped); err == nil {
		t.Error("dropped without Postgres")
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = h.Run(ctx) })
	defer running.Wait()
	defer stop()
	deadline := time.After(20 * time.Second)
	for n := 0; ; n++ {
		one, _, err1 := h.Claim(t.Context(), h.asked("req_3", "kept"))
		two, _, err2 := h.Claim(t.Context(), h.asked("req_4", "dropped"))
		if one == replay.Bare && two == replay.Claimed {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%q, %q (%v, %v), want the ends to be known", one, two, err1, err2)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestAnswersExpireAndAreBounded(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	for i := range 4 {
		a := h.asked(fmt.Sprint("req_", i), fmt.Sprint("k", i))
		h.want(t, a, replay.Claimed)
		if err := h.Keep(t.Context(), a, "application/json", make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	h.exec(t, `UPDATE kept_answers SET expires_at = now() WHERE request_id = 'req_0'`)
	n, err := replay.Expire(t.Context(), h.db.Worker, 100, 2500) // room for two, as sealed
	if err != nil || n != 1 {
		t.Errorf("%d removed (%v), want the one that has expired", n, err)
	}
	for i, want := range []replay.Outcome{replay.Claimed, replay.Bare, replay.Done, replay.Done} {
		h.want(t, h.asked("req_again", fmt.Sprint("k", i)), want)
	}
}

// What is asked for in a transaction and that it is not to be asked for again are
// on record both, or neither is.
func TestAnOrderKeepsItsKeyOrNeitherIs(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	first := h.asked("req_1", "k")
	h.want(t, first, replay.Claimed)
	broken := errors.New("the order fails")
	order := func(fault error) error {
		return pgx.BeginFunc(t.Context(), h.db.Worker, func(tx pgx.Tx) error {
			return errors.Join(h.KeepWith(t.Context(), tx, first), fault)
		})
	}
	if err := order(broken); !errors.Is(err, broken) {
		t.Error(err)
	}
	h.want(t, h.asked("req_2", "k"), replay.Running)
	if err := order(nil); err != nil {
		t.Error(err)
	}
	h.want(t, h.asked("req_3", "k"), replay.Bare)
}
