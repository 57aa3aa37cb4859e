package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"weir/bench/proc"
	"weir/migrations"
	"weir/migrations/pgserver"
)

// gatewayCatalogue sells the mock's models under a plan whose limits are
// checked, and never reached.
const gatewayCatalogue = `apiVersion: weir/v1
bands:
  - {name: standard, priority: 0}
plans:
  bench:
    bands: {default: standard}
    weight: 1
    fairness: tenant
    limits: {requests_per_minute: 100000000, concurrency: 1000000}
    key_limits: {requests_per_minute: 100000000, concurrency: 1000000}
pools:
  - name: mock
    %s
    scheduler: {max_queued: 100000, max_band_queued: 100000, max_flow_queued: 100000}
    endpoints: [{id: mock, url: "http://%s", engine: vllm, max_concurrency: 20000}]
models:
  - {name: bench, operations: [chat], routes: [{pool: mock}]}
  - {name: bench-paced, operations: [chat], routes: [{pool: mock}]}
  - {name: bench-idle, operations: [chat], routes: [{pool: mock}], timeouts: {idle: 30m}}
prices:
  - {model: bench, input: "0.10", cached_input: "0.02", output: "0.40"}
  - {model: bench-paced, input: "0.10", cached_input: "0.02", output: "0.40"}
  - {model: bench-idle, input: "0.10", cached_input: "0.02", output: "0.40"}
`

// installation is a real Weir: Postgres with fsync on, a schema, a catalogue, a
// tenant and a key.
type installation struct {
	program  string
	env      []string
	pgPID    int
	adminURL string // superuser's, to count receipts beyond row-level security
	tenantID string
	key      string
}

const database = "weir"

// install makes one that sells what the catalogue says. It has no tenant yet.
func (b *bench) install(ctx context.Context, program, catalogue string) (*installation, error) {
	b.say("starting Postgres, fsync on")
	pg, err := pgserver.Start(ctx, pgserver.Config{
		Dir: filepath.Join(b.dir, "postgres"), Durable: true, Log: slog.New(slog.DiscardHandler), Progress: b.say,
	})
	if err != nil {
		return nil, err
	}
	b.postgres = pg
	pid, err := proc.Child("postgres")
	if err != nil {
		return nil, err
	}
	return b.installIn(ctx, program, database, pid, catalogue)
}

// installIn makes one in a database of its own of the Postgres that runs.
func (b *bench) installIn(ctx context.Context, program, name string, pid int, catalogue string) (*installation, error) {
	pg := b.postgres
	in := &installation{program: program, pgPID: pid, adminURL: pg.URL(name)}
	logins, err := migrations.Prepare(ctx, pg.URL("postgres"), name, pg.Secret())
	if err != nil {
		return nil, err
	}
	pepper := make([]byte, 32)
	_, _ = rand.Read(pepper) // never fails
	in.env = []string{
		"WEIR_DATABASE_URL=" + logins.App,
		"WEIR_WORKER_DATABASE_URL=" + logins.Worker,
		"WEIR_OWNER_DATABASE_URL=" + logins.Owner,
		"WEIR_KEYS_PEPPER=1:" + base64.StdEncoding.EncodeToString(pepper),
		"WEIR_MASTER_KEYS=1:" + base64.StdEncoding.EncodeToString(pepper),
		"WEIR_CACHE_SALT_SECRET=" + rand.Text() + rand.Text(),
		"WEIR_STATE_DIR=" + filepath.Join(b.dir, "state"),
		"WEIR_REPLICAS=1", // several run at once, but one works
	}
	if _, err := in.weir(ctx, "migrate"); err != nil {
		return nil, err
	}
	return in, b.apply(ctx, in, catalogue)
}

// runnable turns a missing program into advice.
func runnable(program string) error {
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%w: build it first (make build)", err)
	}
	return nil
}

// tenant makes a tenant on a plan, and a key of it, with the operator's
// commands.
func (in *installation) tenant(ctx context.Context, name, plan string) (id, key string, err error) {
	id, err = in.weir(ctx, "tenant", "create", name, "--plan", plan, "--quiet")
	if err != nil {
		return "", "", err
	}
	key, err = in.weir(ctx, "key", "create", "--tenant", id, "--quiet")
	return id, key, err
}

// apply gives it another catalogue.
func (b *bench) apply(ctx context.Context, in *installation, catalogue string) error {
	file := filepath.Join(b.dir, "catalogue.yaml")
	if err := os.WriteFile(file, []byte(catalogue), 0o600); err != nil {
		return err
	}
	_, err := in.weir(ctx, "apply", "-f", file)
	return err
}

// weir runs one command to its end and returns what it printed.
func (in *installation) weir(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, in.program, args...)
	cmd.Env = append(os.Environ(), in.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("weir %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

// serve adds a running gateway as a target. further are the parts whose work
// counts too, beside Postgres.
func (b *bench) serve(ctx context.Context, in *installation, name string, env []string, further ...proc.Part) error {
	t, err := b.launch(ctx, in, name, env, further...)
	if err == nil {
		b.targets = append(b.targets, t)
	}
	return err
}

func (b *bench) launch(ctx context.Context, in *installation, name string, env []string, further ...proc.Part) (*target, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	opsPort, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	addr, ops := hostPort(port), hostPort(opsPort)
	state := filepath.Join(b.dir, "state-"+strconv.Itoa(port))
	env = append(append([]string{}, in.env...), append(env,
		"WEIR_LISTEN="+addr, "WEIR_OPS_ADDR="+ops, "WEIR_STATE_DIR="+state, "WEIR_OPS_TOKEN="+b.opsToken)...)
	c, err := startChild(b.dir, "weir-"+strconv.Itoa(port), env, in.program, "serve")
	if err != nil {
		return nil, err
	}
	b.children = append(b.children, c)
	b.say("waiting for " + name)
	if err := c.ready(ctx, answers("http://"+ops+"/readyz")); err != nil {
		return nil, err
	}
	parts := append([]proc.Part{{Name: "gateway", PID: c.pid()}, {Name: "Postgres", PID: in.pgPID}}, further...)
	return &target{name: name, url: "http://" + addr, ops: "http://" + ops, key: in.key, parts: parts, metered: true}, nil
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// startOwnTenant adds a gateway with its in-process limits, as one replica runs.
func (b *bench) startOwnTenant(ctx context.Context, program string) error {
	in, err := b.install(ctx, program, fmt.Sprintf(gatewayCatalogue, "", b.mockAddr))
	if err != nil {
		return err
	}
	if in.tenantID, in.key, err = in.tenant(ctx, "Bench", "bench"); err != nil {
		return err
	}
	// The mock's cache knows no salt: that its counts are shown, the pool is one
	// tenant's own.
	own := "isolation: single-tenant\n    tenants: [" + in.tenantID + "]"
	if err := b.apply(ctx, in, fmt.Sprintf(gatewayCatalogue, own, b.mockAddr)); err != nil {
		return err
	}
	b.installation = in
	return b.serve(ctx, in, "weir", nil)
}

// startWeir adds the gateway as one replica runs, and where Redis is installed
// with limits there, and with money on besides.
func (b *bench) startWeir(ctx context.Context, program string) error {
	if err := b.startOwnTenant(ctx, program); err != nil {
		return err
	}
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		b.say("redis-server is not installed: left out")
		return nil //nolint:nilerr // it is optional
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	c, err := startChild(b.dir, "redis", nil, redis, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", b.dir)
	if err != nil {
		return err
	}
	b.children = append(b.children, c)
	if err := c.ready(ctx, pong(hostPort(port))); err != nil {
		return err
	}
	shared, counted := "WEIR_REDIS_URL=redis://"+hostPort(port)+"/0", proc.Part{Name: "Redis", PID: c.pid()}
	if err := b.serve(ctx, b.installation, "weir, Redis", []string{shared}, counted); err != nil {
		return err
	}
	if err := b.installation.credit(ctx); err != nil {
		return err
	}
	return b.serve(ctx, b.installation, "weir, Redis, money", []string{shared, "WEIR_BILLING_MODE=enforce"}, counted)
}

// credit gives the tenant more than it can spend.
func (in *installation) credit(ctx context.Context) error {
	db, err := pgx.Connect(ctx, in.adminURL)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, `SELECT weir_credit($1, 'paid', 1000000000000000, 'opening')`, in.tenantID)
	return errors.Join(err, db.Close(ctx))
}

// pong asks a Redis whether it lives.
func pong(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return err
		}
		buf := make([]byte, 5)
		if _, err := conn.Read(buf); err != nil {
			return err
		}
		if string(buf) != "+PONG" {
			return errors.New("no answer to PING")
		}
		return nil
	}
}
