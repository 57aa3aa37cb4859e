package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"weir/api"
	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/migrations"
	"weir/scheduler/epp"
	"weir/scheduler/primary"
)

// schedulerOptions are the flags of `weir scheduler`.
type schedulerOptions struct {
	catalogue string   // file; empty: Postgres
	pools     []string // to serve; none: all
	policies  []string // POOL=FILE
}

func schedulerCommand() *cobra.Command {
	var o schedulerOptions
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Schedule pools for several gateways, or for Envoy",
		Long: `Run Weir's scheduler apart from the gateway, over Envoy's external processing
protocol as llm-d's Endpoint Picker does. Gateways whose catalogue gives a pool
"scheduler: {kind: weir, epp: [...]}" share its queues; Envoy can use it, too.

With Postgres it serves the catalogue's pools of kind weir, and of several
processes with the same scheduler_lease one is the primary: the others answer
health checks with NOT_SERVING until it is gone. With --catalogue it reads the
pools from a file, needs no Postgres, and is always the primary.

` + settingsHelp(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err
			}
			s, err := newSharedScheduler(cmd.Context(), newLogger(c, cmd.ErrOrStderr()), c, o)
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&o.catalogue, "catalogue", "", "read the pools from this file and not from Postgres")
	cmd.Flags().StringSliceVar(&o.pools, "pool", nil, "serve this pool alone; may be repeated")
	cmd.Flags().StringSliceVar(&o.policies, "policy", nil, "POOL=FILE: an EndpointPickerConfig that sets the pool's policies; may be repeated")
	return cmd
}

// sharedScheduler is the wired command.
type sharedScheduler struct {
	log    *slog.Logger
	cfg    *Config
	fleet  *gateway.Fleet
	server *epp.Server
	lease  *primary.Lease // nil without Postgres: always the primary
	tls    *tls.Config
	ops    http.Handler

	background []func(context.Context) error // beside the requests
	closers    []func()
}

// newSharedScheduler wires all parts. Nothing listens yet and nothing runs.
func newSharedScheduler(ctx context.Context, log *slog.Logger, c *Config, o schedulerOptions) (*sharedScheduler, error) {
	s := &sharedScheduler{log: log, cfg: c}
	if err := s.wire(ctx, o); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *sharedScheduler) wire(ctx context.Context, o schedulerOptions) (err error) {
	if s.tls, err = schedulerTLS(&s.cfg.Scheduler); err != nil {
		return err
	}
	warn := func(w string) { s.log.Warn("catalogue", "warning", w) }
	pools := &ownPools{serves: func(p *catalogue.Pool) bool { return servesPool(o, p) }}
	if pools.policies, err = readPolicies(o.policies, warn); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	conf := epp.Config{MaxBody: s.cfg.MaxBody}
	if o.catalogue != "" {
		snapshot, err := readPools(o.catalogue, warn)
		if err != nil {
			return err
		}
		pools.Source = fixedPools{snapshot}
	} else {
		if pools.Source, err = s.follow(ctx); err != nil {
			return err
		}
		conf.Primary, conf.Epoch = s.lease.Held, s.lease.Term
	}
	for _, name := range o.pools {
		if _, known := pools.Snapshot().Pool(name); !known {
			return fmt.Errorf("--pool %s: the catalogue has no such pool of kind weir", name)
		}
	}
	for name := range pools.policies {
		if _, known := pools.Snapshot().Pool(name); !known {
			return fmt.Errorf("--policy %s: no such pool is served here", name)
		}
	}
	s.fleet = gateway.NewFleet(s.log, pools, registry)
	s.background = append(s.background, s.fleet.Run)
	s.server = epp.New(s.log, served{s.fleet, pools}, epp.NewMetrics(registry), conf)
	s.ops = api.NewOps(s.log, api.Deps{
		Config: api.Config{OpsToken: s.cfg.OpsToken.Reveal()}, Gatherer: registry, Checks: s.checks(pools),
		Pools: func() any { return s.fleet.Pools() },
		Decisions: func(request string, latest int) any {
			if request == "" {
				return explanation{Decisions: s.fleet.Decisions(latest)}
			}
			return explanation{Decisions: s.fleet.DecisionsOn(request)}
		},
	})
	return nil
}

// servesPool reports whether a pool is served: from the database those that
// gateways send here; from a file all that aren't llm-d's.
func servesPool(o schedulerOptions, p *catalogue.Pool) bool {
	if len(o.pools) > 0 && !slices.Contains(o.pools, p.Name) {
		return false
	}
	switch p.Scheduler.Kind {
	case catalogue.KindWeir:
		return true
	case "", catalogue.KindEmbedded:
		return o.catalogue != ""
	default:
		return false
	}
}

// follow opens Postgres: for the catalogue, and for the lease.
func (s *sharedScheduler) follow(ctx context.Context) (gateway.Source, error) {
	app, worker, err := openPools(ctx, s.cfg)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, app.Close, worker.Close)
	if pending, err := migrations.Pending(ctx, s.cfg.DatabaseURL.Reveal()); err != nil {
		return nil, err
	} else if pending > 0 {
		return nil, fmt.Errorf("the database lacks %d migrations: run `weir migrate` first", pending)
	}
	store := catalogue.NewStore(s.log, app, worker)
	if err := store.Load(ctx); err != nil {
		return nil, err
	}
	s.background = append(s.background, store.Run)
	s.lease = primary.New(s.log, worker, primary.Config{
		Name: s.cfg.Scheduler.Lease, TTL: s.cfg.Scheduler.LeaseTTL,
		Changed: func(held bool) { s.server.Follow(held) },
	})
	return store, nil
}

func (s *sharedScheduler) checks(pools *ownPools) []api.Check {
	return []api.Check{
		{Name: "pools", Run: func(context.Context) error {
			if len(pools.Snapshot().Pools()) == 0 {
				return errors.New("there is none to serve: give a pool \"scheduler: {kind: weir, epp: [...]}\" and apply the catalogue")
			}
			return nil
		}},
		{Name: "primary", Note: true, Run: func(context.Context) error {
			if s.lease == nil {
				return nil
			}
			return s.lease.State()
		}},
	}
}

// run serves until ctx ends, then lets what runs finish within the drain
// timeout.
func (s *sharedScheduler) run(ctx context.Context) error {
	defer s.close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Scheduler.Listen)
	if err != nil {
		return fmt.Errorf("scheduler_listen: %w", err)
	}
	private, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.OpsAddr)
	if err != nil {
		return errors.Join(fmt.Errorf("operators' listener (WEIR_OPS_ADDR): %w", err), listener.Close())
	}
	ops := &http.Server{Handler: s.ops, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}

	// Endpoints are watched, and pages shown, until the last request is over.
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	beside, lasting := errgroup.WithContext(lasting)
	for _, run := range s.background {
		beside.Go(func() error { return run(lasting) })
	}
	beside.Go(func() error {
		if err := ops.Serve(private); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	requests, serving := errgroup.WithContext(ctx)
	if s.lease != nil {
		requests.Go(func() error { return s.lease.Run(serving) })
	}
	requests.Go(func() error {
		return s.server.Serve(serving, listener, epp.Serving{TLS: s.tls, Grace: s.cfg.DrainTimeout})
	})
	s.log.Info("scheduling", "listen", listener.Addr().String(), "ops", private.Addr().String(), "version", version)
	err = requests.Wait()
	s.fleet.Close()
	_ = ops.Close()
	stop()
	return errors.Join(err, beside.Wait())
}

func (s *sharedScheduler) close() {
	for _, end := range slices.Backward(s.closers) {
		end()
	}
	s.closers = nil
}

// schedulerTLS is how the scheduler proves itself, and asks others to; nil
// without a certificate, which is for this machine alone.
func schedulerTLS(c *SchedulerConfig) (*tls.Config, error) {
	switch {
	case (c.Cert == "") != (c.Key == ""):
		return nil, errors.New("scheduler_tls_cert_file and scheduler_tls_key_file go together")
	case c.Cert == "" && c.ClientCA != "":
		return nil, errors.New("scheduler_client_ca_file needs scheduler_tls_cert_file")
	case c.Cert == "" && c.Plaintext != "on" && !onLoopback(c.Listen):
		return nil, errors.New("scheduler_listen is beyond this machine: prompts would be readable on the way; set scheduler_tls_cert_file, or scheduler_plaintext: on where the network between is your own")
	case c.Cert == "":
		return nil, nil //nolint:nilnil // none is wanted
	}
	// Read for each connection, of which there are few: a renewed one is used.
	pair := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		return &pair, err
	}
	if _, err := pair(nil); err != nil {
		return nil, fmt.Errorf("scheduler_tls_cert_file: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair}
	if c.ClientCA == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(c.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("scheduler_client_ca_file: %w", err)
	}
	conf.ClientCAs, conf.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !conf.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("scheduler_client_ca_file has no certificate")
	}
	return conf, nil
}
