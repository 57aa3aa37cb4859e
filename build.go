package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"weir/api"
	"weir/billing"
	"weir/gateway"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/gateway/media"
	"weir/gateway/replay"
	"weir/gateway/replica"
	"weir/migrations"
	"weir/responses"
	"weir/responses/eventlog"
	"weir/scheduler/pool/keda"
	"weir/tenants"
	"weir/tenants/notify"
)

const (
	minSecret  = 32      // characters of a secret that stands alone
	spoolBytes = 1 << 30 // receipts kept on disk while Postgres is away
)

// program is the wired gateway: every part, and what runs beside the requests.
type program struct {
	log         *slog.Logger
	cfg         *Config
	app, worker *pgxpool.Pool
	catalogue   *catalogue.Store
	keys        *tenants.Keys
	settler     *billing.Settler
	books       *billing.Books
	funds       *billing.Funds
	fleet       *gateway.Fleet
	gateway     *gateway.Gateway
	replicas    *replica.Register
	orphans     *gateway.Orphans
	limits      *admission.Redis // nil without Redis
	responses   *responses.Postgres
	replays     *replay.Store
	runs        responses.BackgroundDeps
	jobs        *jobs
	sealer      *responses.Sealer
	media       *media.Loader
	server      *api.Server

	background []func(context.Context) error // run until the last request is over
	closers    []func() error                // then, last first
}

// build wires all parts. Nothing listens yet and nothing runs.
func build(ctx context.Context, log *slog.Logger, c *Config) (*program, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	p := &program{log: log, cfg: c}
	if err := p.wire(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *program) wire(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := p.openDatabase(ctx); err != nil {
		return err
	}
	if err := p.buildCatalogue(ctx); err != nil {
		return err
	}
	p.buildKeys()
	if err := p.buildSettler(registry); err != nil { // from here on the state folder is ours alone
		return err
	}
	if err := p.buildReplica(ctx); err != nil {
		return err
	}
	p.buildFunds(registry)
	limits, err := p.buildLimits()
	if err != nil {
		return err
	}
	p.buildGateway(limits, registry)
	p.buildOrphans(limits, registry)
	if err := p.buildScaler(ctx); err != nil {
		return err
	}
	if err := p.buildResponses(); err != nil { //nolint:contextcheck // what it builds runs under contexts of its own
		return err
	}
	if err := p.buildMedia(); err != nil {
		return err
	}
	p.buildAPI(registry) //nolint:contextcheck // its handlers have the contexts of their requests
	p.background = append(p.background, p.server.Background().Run, p.jobs.Run)
	return p.jobs.start(p.server.Background(), p.cfg.BackgroundRuns, p.settleOrphans)
}

// complete checks what serving needs beyond what commands need.
func (c *Config) complete() error {
	var errs []error
	if err := c.Peppers.Validate(); err != nil {
		errs = append(errs, errors.New(`WEIR_KEYS_PEPPER is not set; make one with: echo "1:$(openssl rand -base64 32)"`))
	}
	if err := c.Masters.Validate(); err != nil {
		errs = append(errs, errors.New(`WEIR_MASTER_KEYS is not set; make one with: echo "1:$(openssl rand -base64 32)"`))
	}
	if len(c.CacheSalt.Reveal()) < minSecret {
		errs = append(errs, fmt.Errorf("WEIR_CACHE_SALT_SECRET needs %d characters or more; make one with: openssl rand -base64 32", minSecret))
	}
	if c.DatabaseURL == "" || c.WorkerURL == "" {
		errs = append(errs, errors.New("WEIR_DATABASE_URL and WEIR_WORKER_DATABASE_URL are needed (docs/database.md)"))
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		errs = append(errs, errors.New("tls_cert_file and tls_key_file go together"))
	}
	return errors.Join(errs...)
}

func (p *program) openDatabase(ctx context.Context) (err error) {
	if p.app, p.worker, err = openPools(ctx, p.cfg); err != nil {
		return err
	}
	p.closers = append(p.closers, func() error { p.app.Close(); p.worker.Close(); return nil })
	pending, err := migrations.Pending(ctx, p.cfg.DatabaseURL.Reveal())
	if err != nil {
		return err
	}
	if pending > 0 {
		return fmt.Errorf("the database lacks %d migrations: run `weir migrate` first", pending)
	}
	return migrations.CheckRoles(ctx, p.app, p.worker)
}

func (p *program) buildCatalogue(ctx context.Context) error {
	p.catalogue = catalogue.NewStore(p.log, p.app, p.worker)
	p.background = append(p.background, p.catalogue.Run)
	if err := p.catalogue.Load(ctx); err != nil {
		return err
	}
	if p.cfg.development {
		return nil
	}
	return forbidPlaintext(p.catalogue.Snapshot())
}

// forbidPlaintext refuses pools whose schedulers on other machines are reached
// without TLS. One that comes later is not used.
func forbidPlaintext(snap *catalogue.Snapshot) error {
	for _, pool := range snap.Pools() {
		if pool.Scheduler.Plaintext() {
			return fmt.Errorf("pool %s: scheduler: insecure_plaintext is for `weir dev`: what tenants ask would be readable on the way; write grpcs:// and tls: in the catalogue", pool.Name)
		}
	}
	return nil
}

func (p *program) buildKeys() {
	p.keys = tenants.NewKeys(p.log, p.worker, p.cfg.Peppers, tenants.KeysConfig{StaleMax: p.cfg.AuthStale}, time.Now)
	p.background = append(p.background, p.keys.Run)
}

func (p *program) buildSettler(registry prometheus.Registerer) error {
	dir := filepath.Join(p.cfg.StateDir, "spool")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the spool's folder: %w", err)
	}
	spool, err := billing.OpenSpool(dir, spoolBytes)
	if err != nil {
		return err
	}
	p.closers = append(p.closers, spool.Close)
	p.settler = billing.NewSettler(p.log, p.worker, spool, billing.SettleConfig{Metrics: registry}, time.Now)
	p.books = billing.NewBooks(p.log, p.worker, registry)
	p.background = append(p.background, p.settler.Run)
	return nil
}

// buildReplica joins the replicas that live. What is divided by their number
// follows it.
func (p *program) buildReplica(ctx context.Context) error {
	p.replicas = replica.NewRegister(p.log, p.worker, replica.Config{Folder: p.cfg.StateDir, Changed: func(int) {
		if p.fleet != nil { // it asks for itself when it is built
			p.fleet.Divide(p.live())
		}
	}})
	p.background = append(p.background, p.replicas.Run)
	return p.replicas.Join(ctx)
}

// buildFunds holds parts of wallets for this replica.
func (p *program) buildFunds(registry prometheus.Registerer) {
	p.funds = billing.NewFunds(p.log, p.worker, billing.FundsConfig{
		Replica: p.replicas.ID(), ChunkTTL: p.cfg.ChunkTTL, ChunkMax: p.cfg.ChunkMaxNano, Metrics: registry,
		Behind: func() bool { return p.settler.Away() || p.settler.Spooled() > 0 },
	}, time.Now)
	p.background = append(p.background, p.funds.Run)
}

// live is how many replicas there are: as the operator says, else as they say
// of themselves.
func (p *program) live() int { return cmp.Or(p.cfg.Replicas, p.replicas.Live()) }

// limitStore counts, and keeps the intents of what it admits.
type limitStore interface {
	admission.Store
	admission.Intents
}

// buildLimits counts in process for one replica, in Redis for several.
func (p *program) buildLimits() (limitStore, error) {
	journal, err := admission.OpenJournal(filepath.Join(p.cfg.StateDir, "intents"))
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, journal.Close)
	if p.cfg.RedisURL == "" {
		return admission.NewMemory(admission.MemoryConfig{Journal: journal}), nil
	}
	client, err := openRedis(p.cfg)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, client.Close)
	p.limits = admission.NewRedis(p.log, client, admission.RedisConfig{Replicas: p.live, Journal: journal})
	p.background = append(p.background, p.limits.Run)
	return p.limits, nil
}

func (p *program) buildGateway(limits limitStore, registry *prometheus.Registry) {
	p.fleet = gateway.NewFleet(p.log, p.catalogue, registry)
	if p.cfg.development {
		p.fleet.AllowPlaintext()
	}
	p.fleet.Divide(p.live())
	p.background = append(p.background, p.fleet.Run)
	p.gateway = gateway.New(p.log, gateway.Deps{
		Catalogue: p.catalogue, Limits: limits, Intents: limits, Pools: p.fleet, Receipts: p.settler, Funds: p.funds, Metrics: registry,
	}, gateway.Config{
		SaltSecret: []byte(p.cfg.CacheSalt.Reveal()),
		Replica:    p.replicas.ID(), BillingMode: billing.Mode(p.cfg.BillingMode), HoldSlice: int64(p.cfg.HoldSlice),
		Secrets:   os.Getenv, // the catalogue names variables, never keys
		KeepAlive: p.cfg.KeepAlive,
		// The gateway's 0 is its default.
		FairnessIDs: cmp.Or(p.cfg.FairnessIDs, -1),
	})
	p.closers = append(p.closers, func() error { p.gateway.Close(); return nil })
	p.background = append(p.background, p.gateway.WatchIsolation, p.gateway.Checkpoint)
}

// buildScaler answers KEDA where an address is set.
func (p *program) buildScaler(ctx context.Context) error {
	if p.cfg.ScalerAddr == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.cfg.ScalerAddr)
	if err != nil {
		return fmt.Errorf("external scaler (WEIR_SCALER_ADDR): %w", err)
	}
	p.closers = append(p.closers, func() error { _ = listener.Close(); return nil }) // Serve may have
	scaler := keda.New(p.fleet.Scales)
	p.background = append(p.background, func(ctx context.Context) error { return scaler.Serve(ctx, listener) })
	return nil
}

// historyBytes bounds what a replica remembers of chains that were used lately.
const historyBytes = 128 << 20

func (p *program) buildResponses() error {
	vault, err := tenants.NewVault(p.app, p.cfg.Masters)
	if err != nil {
		return err
	}
	if p.sealer, err = responses.NewSealer([]byte(p.cfg.CacheSalt.Reveal())); err != nil {
		return err
	}
	p.replays = replay.New(p.log, p.worker, vault, replay.Config{
		Replica: p.replicas.ID(), Dead: p.cfg.OrphanAfter + orphansGrace, Steady: p.replicas.Steady,
	})
	p.background = append(p.background, p.replays.Run)
	p.responses = responses.NewPostgres(p.app, vault, historyBytes, time.Now)
	events, err := p.buildEvents()
	if err != nil {
		return err
	}
	p.jobs = &jobs{log: p.log, worker: p.worker, books: p.books}
	p.runs = responses.BackgroundDeps{
		Runs: responses.NewRuns(p.worker, p.responses), Events: events, Vault: vault, Keys: p.keys,
		Enqueue: p.jobs.enqueueRun, PerTenant: max(1, p.cfg.BackgroundRuns/4),
	}
	return nil
}

// buildMedia loads what requests name by address, and reads documents in
// processes of this very program.
func (p *program) buildMedia() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own program: %w", err)
	}
	var client *http.Client
	if p.cfg.MediaFetch != "off" {
		dialer := notify.NewDialer(notify.Config{Allow: p.cfg.OutboundAllow, Ports: p.cfg.OutboundPorts})
		client = notify.NewClient(dialer, notify.ClientConfig{Redirects: 3, UserAgent: "weir-media"})
	}
	p.media = media.NewLoader(p.log, client, media.NewExtractor(self, "weir", extractName))
	return nil
}

// buildEvents keeps events in process for one replica, in Redis for several.
func (p *program) buildEvents() (responses.Events, error) {
	if p.cfg.RedisURL == "" {
		return eventlog.NewMemory(eventlog.Config{}, time.Now), nil
	}
	client, err := openRedis(p.cfg)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, client.Close)
	events := eventlog.NewRedis(p.log, client, eventlog.Config{})
	p.background = append(p.background, events.Run)
	return events, nil
}

func (p *program) buildAPI(registry *prometheus.Registry) {
	p.server = api.New(p.log, api.Deps{
		Config: api.Config{
			MaxBody: p.cfg.MaxBody, TrustedProxies: p.cfg.TrustedProxies, OpsToken: p.cfg.OpsToken.Reveal(),
		},
		Keys: p.keys, Gateway: p.gateway, Queue: p.gateway, Limits: p.gateway, Replays: p.replays, Responses: p.responses, Sealer: p.sealer, Media: p.media, Background: p.runs,
		Catalogue:  func() api.Catalogue { return p.catalogue.Snapshot() },
		Registerer: registry, Gatherer: registry,
		Checks: p.checks(),
		Pools:  func() any { return poolPages(p.fleet.Pools(), p.fleet.Shared(), p.gateway.Isolation()) },
		Decisions: func(request string, latest int) any {
			if request == "" {
				return explanation{Decisions: p.fleet.Decisions(latest)}
			}
			e := explanation{Decisions: p.fleet.DecisionsOn(request)}
			if w, waits := p.gateway.WaitingRequest(request); waits {
				e.Waiting = &w
			}
			return e
		},
	})
}

// checks are what /readyz asks. A lost database degrades a replica that can
// still serve known keys and spool receipts; it makes it unready only when
// nothing was ever read from it, which build refuses.
func (p *program) checks() []api.Check {
	list := []api.Check{
		{Name: "postgres", Run: func(ctx context.Context) error {
			if p.app.Ping(ctx) != nil {
				return errors.New("no answer: known keys are served for a while, receipts go to the spool")
			}
			return nil
		}},
		{Name: "revocation", Run: func(context.Context) error {
			if !p.keys.Listening() {
				return errors.New("not listening for revoked keys: they are noticed within 5 s, not at once")
			}
			return nil
		}},
		{Name: "jobs", Run: p.jobs.check},
		{Name: "catalogue", Vital: true, Run: func(context.Context) error {
			if len(p.catalogue.Snapshot().Models()) == 0 {
				return errors.New("no model is on sale: apply a catalogue with `weir apply -f`")
			}
			return nil
		}},
	}
	list = append(list,
		api.Check{Name: "pools", Note: true, Run: func(context.Context) error { return dividedPools(p.fleet, p.live()) }},
		api.Check{Name: "schedulers", Run: p.fleet.CheckShared},
		api.Check{Name: "objectives", Run: p.fleet.CheckObjectives},
		api.Check{Name: "objectives_unknown", Note: true, Run: p.fleet.CheckObjectivesKnown},
	)
	list = append(list, api.Check{Name: "isolation", Run: p.gateway.CheckIsolation})
	if p.limits != nil {
		list = append(list, api.Check{Name: "redis", Run: func(context.Context) error {
			if !p.limits.Healthy() {
				return fmt.Errorf("no answer: this replica counts limits for itself, each divided by %d", p.live())
			}
			return nil
		}})
	} else {
		list = append(list, api.Check{Name: "redis", Run: func(context.Context) error {
			if p.live() > 1 {
				return errors.New("several replicas but no WEIR_REDIS_URL: each grants every limit in full")
			}
			return nil
		}})
	}
	return list
}

// dividedPools says what several replicas mean for pools that have no shared
// scheduler.
func dividedPools(fleet *gateway.Fleet, replicas int) error {
	shared, own := fleet.Undivided()
	if replicas < 2 || own == 0 {
		return nil
	}
	but := ""
	if len(shared) > 0 {
		but = "; shared are " + strings.Join(shared, ", ")
	}
	return fmt.Errorf("%d replicas have queues of their own: what a pool may run and hold is divided by %d, and order and fairness hold within a replica%s", replicas, replicas, but)
}

// close gives back what build took, last first.
func (p *program) close() error {
	var errs []error
	for _, end := range slices.Backward(p.closers) {
		errs = append(errs, end())
	}
	p.closers = nil
	return errors.Join(errs...)
}

// runBackground starts all that runs beside the requests.
func (p *program) runBackground(ctx context.Context) *errgroup.Group {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range p.background {
		group.Go(func() error { return run(ctx) })
	}
	return group
}
