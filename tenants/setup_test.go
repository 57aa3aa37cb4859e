package tenants_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations/pgtest"
	"weir/tenants"
)

const actor = "operator:test"

// house is a database with two plans, a store on it and one tenant.
type house struct {
	*tenants.Store
	db      *pgtest.DB
	peppers tenants.Peppers
	tenant  tenants.Tenant
	project tenants.Project
}

func standardPlans() map[string]tenants.Plan {
	return map[string]tenants.Plan{
		"standard": {
			Bands:  map[tenants.Tier]string{tenants.TierDefault: "standard", tenants.TierFlex: "low"},
			Weight: 2, Fairness: tenants.FairnessTenant, RetentionDays: 30, ReservedTokens: 4000, TTFTMillis: 500,
			Limits:        tenants.Limits{RequestsPerMinute: 600, Concurrency: 50},
			KeyLimits:     tenants.Limits{RequestsPerMinute: 60, Concurrency: 5},
			ProjectLimits: tenants.Limits{RequestsPerMinute: 300}, Burst: 1.5,
			ModelLimits: map[string]tenants.Limits{"org/big": {RequestsPerMinute: 20, Concurrency: 2}},
		},
		"shared": {
			Bands:  map[tenants.Tier]string{tenants.TierDefault: "standard"},
			Weight: 1, Fairness: tenants.FairnessProject,
		},
	}
}

func newHouse(tb testing.TB) *house {
	tb.Helper()
	db := pgtest.New(tb)
	h := &house{db: db, peppers: pepper(tb, 1)}
	h.Store = tenants.NewStore(db.App, h.peppers, time.Now)
	err := pgx.BeginFunc(tb.Context(), db.App, func(tx pgx.Tx) error {
		return tenants.PutPlans(tb.Context(), tx, standardPlans())
	})
	if err != nil {
		tb.Fatal(err)
	}
	h.tenant, h.project, err = h.CreateTenant(tb.Context(), actor, "Acme", "standard")
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// pepper returns peppers of the versions, the current one first. A version's
// pepper is always the same.
func pepper(tb testing.TB, versions ...int) tenants.Peppers {
	tb.Helper()
	texts := make([]string, len(versions))
	for i, v := range versions {
		texts[i] = fmt.Sprintf("%d:%s", v, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(v)}, 32)))
	}
	p, err := tenants.ParsePeppers(strings.Join(texts, ","))
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// spec is that of a plain inference key.
func (h *house) spec() tenants.KeySpec {
	return tenants.KeySpec{Kind: tenants.ProjectKey, Project: h.project.ID, Name: "test"}
}

func (h *house) key(tb testing.TB, spec tenants.KeySpec) (string, tenants.Key) {
	tb.Helper()
	secret, key, err := h.CreateKey(tb.Context(), actor, h.tenant.ID, spec)
	if err != nil {
		tb.Fatal(err)
	}
	return secret.Reveal(), key
}

// app runs a statement as the application, for the tenant.
func (h *house) app(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	err := h.InTenant(tb.Context(), h.tenant.ID, func(tx pgx.Tx) error {
		_, err := tx.Exec(tb.Context(), sql, args...)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// owner runs a statement as the owner of the schema.
func (h *house) owner(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	if _, err := h.db.Owner.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatal(err)
	}
}

// keys returns an authenticator that does not run.
func (h *house) keys(tb testing.TB, cfg tenants.KeysConfig) *tenants.Keys {
	tb.Helper()
	return tenants.NewKeys(testLog(tb), h.db.Worker, h.peppers, cfg, time.Now)
}

// run runs an authenticator for the test and waits until it hears of changes.
func run(tb testing.TB, k *tenants.Keys) *tenants.Keys {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run = %v", err)
		}
	})
	eventually(tb, 10*time.Second, "it listens", k.Listening)
	return k
}

func testLog(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(tb.Output(), nil))
}

func eventually(tb testing.TB, within time.Duration, what string, holds func() bool) {
	tb.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			tb.Fatalf("not within %s: %s", within, what)
		case <-tick.C:
		}
	}
}

// auth authenticates from a usual address.
func auth(tb testing.TB, k *tenants.Keys, secret string) (*tenants.Principal, error) {
	tb.Helper()
	return k.Authenticate(tb.Context(), secret, netip.MustParseAddr("192.0.2.1"))
}

func mustAuth(tb testing.TB, k *tenants.Keys, secret string) *tenants.Principal {
	tb.Helper()
	p, err := auth(tb, k, secret)
	if err != nil {
		tb.Fatalf("Authenticate: %v", err)
	}
	return p
}

// clock is a time that tests move by hand.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// line is the network between a pool and Postgres. It can be cut.
type line struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var errLineCut = errors.New("the line is cut")

func (l *line) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errLineCut
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.conns = nil
	}
}

// counter counts the look-ups that a pool runs, and how many run at once.
type counter struct{ total, running, most atomic.Int64 }

type counted struct{}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(data.SQL, "weir_find_key") {
		return ctx
	}
	c.total.Add(1)
	n := c.running.Add(1)
	for {
		most := c.most.Load()
		if n <= most || c.most.CompareAndSwap(most, n) {
			break
		}
	}
	return context.WithValue(ctx, counted{}, true)
}

func (c *counter) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(counted{}) != nil {
		c.running.Add(-1)
	}
}

// workerPool returns a pool of the worker's over the line, counted.
func (h *house) workerPool(tb testing.TB, l *line, c *counter) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(h.db.WorkerURL)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.MaxConns = 4
	if l != nil {
		cfg.ConnConfig.DialFunc = l.dial
	}
	if c != nil {
		cfg.ConnConfig.Tracer = c
	}
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}
