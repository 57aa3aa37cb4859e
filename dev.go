package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// devOptions are the flags of `weir dev`.
type devOptions struct {
	port      int
	state     string
	endpoints []string
	realModel bool
}

func devCommand() *cobra.Command {
	var opts devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine: Postgres, model servers and the gateway",
		Long: `Run everything on this machine in one process tree: a private Postgres, three
simulated model servers (or your own), and the gateway. State stays in the state
folder, so that the next start has the same key, receipts and tenants. Ctrl-C ends all.

WEIR_DATABASE_URL with WEIR_WORKER_DATABASE_URL and WEIR_OWNER_DATABASE_URL use your
own Postgres, WEIR_REDIS_URL your own Redis.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := cmd.Flags().GetString("config")
			if err != nil {
				return err
			}
			return runDev(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), path, opts)
		},
	}
	f := cmd.Flags()
	f.IntVar(&opts.port, "port", 8080, "port on localhost; 0 takes a free one")
	f.StringVar(&opts.state, "state", ".weir", "folder of the database, the keys and dev.env")
	f.StringArrayVar(&opts.endpoints, "endpoint", nil, "a model server of your own instead of the simulated ones (repeatable), such as http://host:8000")
	f.BoolVar(&opts.realModel, "real-model", false, "also serve a small real model on the CPU (installed at the first use)")
	return cmd
}

// playground is a `weir dev` in the making: what was started, to be ended in
// the opposite order.
type playground struct {
	opts    devOptions
	state   *devState
	secret  *devSecrets
	cfg     *Config
	private bool // the database is ours alone
	out     io.Writer
	began   time.Time
	stops   []func()
}

func (p *playground) later(stop func()) { p.stops = append(p.stops, stop) }

func (p *playground) close() {
	for _, stop := range slices.Backward(p.stops) {
		stop()
	}
}

func (p *playground) say(format string, args ...any) {
	fmt.Fprintf(p.out, "  %s\n", fmt.Sprintf(format, args...))
}

func runDev(ctx context.Context, out, errOut io.Writer, configPath string, opts devOptions) (err error) {
	p := &playground{opts: opts, out: out, began: time.Now()}
	defer p.close()
	if p.state, err = openDevState(opts.state); err != nil {
		return err
	}
	p.later(p.state.close)
	if p.secret, err = p.state.loadSecrets(); err != nil {
		return err
	}
	if p.cfg, err = p.config(configPath); err != nil {
		return err
	}
	fmt.Fprintf(out, "weir dev: starting (state in %s)\n", opts.state)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if err := p.startDatabase(ctx, end, newLogger(p.cfg, errOut)); err != nil {
		return err
	}
	return errors.Join(p.run(ctx, errOut), databaseEnded(ctx))
}

// run starts the rest and serves until ctx ends.
func (p *playground) run(ctx context.Context, errOut io.Writer) error {
	engines, err := p.startEngines(ctx)
	if err != nil {
		return err
	}
	if err := p.applyCatalogue(ctx, engines); err != nil {
		return err
	}
	listeners, err := p.listen(ctx)
	if err != nil {
		return err
	}
	p.cfg.development = true
	weir, err := build(ctx, newLogger(p.cfg, errOut), p.cfg)
	if err != nil {
		return errors.Join(err, closeAll(listeners))
	}
	known := p.secret.Tenant
	err = p.seed(ctx, weir)
	if err == nil && p.secret.Tenant != known { // who has the pools of one tenant
		err = p.applyCatalogue(ctx, engines)
	}
	if err != nil {
		return errors.Join(err, closeAll(listeners), weir.close())
	}
	return weir.serve(ctx, listeners, func() error { return p.announce(engines) })
}

// config is the configuration of a production server, with what a playground
// may choose for itself.
func (p *playground) config(path string) (*Config, error) {
	preset := map[string]string{
		"WEIR_STATE_DIR":         p.state.dir,
		"WEIR_KEYS_PEPPER":       p.secret.Pepper,
		"WEIR_MASTER_KEYS":       p.secret.Master,
		"WEIR_CACHE_SALT_SECRET": p.secret.CacheSalt,
		"WEIR_OPS_TOKEN":         p.secret.OpsToken,
		"WEIR_OPS_ADDR":          "127.0.0.1:0",
		"WEIR_LOG_FORMAT":        "text",
		"WEIR_DRAIN_TIMEOUT":     "3s",
	}
	// A shell that has read dev.env offers the private server as one of its
	// own, which it isn't while nobody has started it.
	private := p.secret.PrivateURL != "" && os.Getenv("WEIR_DATABASE_URL") == p.secret.PrivateURL
	return loadConfig(path, func(name string) (string, bool) {
		if v, ok := os.LookupEnv(name); ok && (!private || !strings.HasSuffix(name, "DATABASE_URL")) {
			return v, ok
		}
		v, ok := preset[name]
		return v, ok
	})
}

// listen binds the port on both loopback addresses; a machine without IPv6
// does with one.
func (p *playground) listen(ctx context.Context) ([]net.Listener, error) {
	var lc net.ListenConfig
	v4, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.opts.port)))
	if err != nil {
		return nil, fmt.Errorf("%w\nanother program has the port: choose one with PORT=9000 make run, or --port", err)
	}
	p.opts.port = v4.Addr().(*net.TCPAddr).Port // a TCP listener has a TCP address
	listeners := []net.Listener{v4}
	v6, err := lc.Listen(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(p.opts.port)))
	switch {
	case err == nil:
		return append(listeners, v6), nil
	case errors.Is(err, syscall.EADDRINUSE): // "localhost" might lead there
		return nil, errors.Join(fmt.Errorf("%w\nanother program has the port on ::1: choose another with --port", err), v4.Close())
	default:
		p.say("on 127.0.0.1 alone: this machine has no ::1")
	}
	return listeners, nil
}

// announce prints what a person needs next, and writes the same to dev.env.
func (p *playground) announce(e *devEngines) error {
	url := "http://localhost:" + strconv.Itoa(p.opts.port)
	err := p.state.writeEnv([][2]string{
		{"WEIR_URL", url},
		{"WEIR_API_KEY", p.secret.APIKey},
		{"WEIR_TENANT", p.secret.Tenant},
		{"WEIR_DATABASE_URL", p.cfg.DatabaseURL.Reveal()},
		{"WEIR_WORKER_DATABASE_URL", p.cfg.WorkerURL.Reveal()},
		{"WEIR_OWNER_DATABASE_URL", p.cfg.OwnerURL.Reveal()},
		{"WEIR_KEYS_PEPPER", p.secret.Pepper},
		{"WEIR_MASTER_KEYS", p.secret.Master},
		{"WEIR_CACHE_SALT_SECRET", p.secret.CacheSalt},
		{"WEIR_OPS_URL", "http://" + p.cfg.OpsAddr},
		{"WEIR_OPS_TOKEN", p.secret.OpsToken},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, `
weir is ready (%s)

  URL      %s
  API key  %s
  models   %s
  ops      http://%s (/healthz /readyz /metrics)
  env      set -a; . %s; set +a

%s

Ctrl-C stops everything.
`, time.Since(p.began).Round(100*time.Millisecond), url, p.secret.APIKey, strings.Join(e.models, ", "), p.cfg.OpsAddr,
		p.state.path("dev.env"), firstRequest(url, p.secret.APIKey, e.models))
	return nil
}

func firstRequest(url, key string, models []string) string {
	return fmt.Sprintf(`curl %s/v1/chat/completions -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -d '{"model":"%s","messages":[{"role":"user","content":"Hello"}]}'`,
		url, key, cmp.Or(models[0], "sim-chat"))
}

func closeAll(listeners []net.Listener) error {
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
