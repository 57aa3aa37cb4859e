package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

func serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway in production",
		Long: `Run the gateway. It needs a Postgres that "weir migrate" prepared, a catalogue
("weir apply"), and Redis where several replicas share limits.

` + settingsHelp(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			listeners, err := listenAll(ctx, c.Listen)
			if err != nil {
				return err
			}
			p, err := build(ctx, newLogger(c, cmd.ErrOrStderr()), c)
			if err != nil {
				return errors.Join(err, closeAll(listeners))
			}
			return p.serve(ctx, listeners, func() error {
				p.log.Info("serving", "listen", c.Listen, "ops", c.OpsAddr, "version", version)
				return nil
			})
		},
	}
}

func listenAll(ctx context.Context, addresses []string) ([]net.Listener, error) {
	var listeners []net.Listener
	for _, a := range addresses {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a)
		if err != nil {
			return nil, errors.Join(err, closeAll(listeners))
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// ballastBytes counts as live heap, so that the collector first runs when as
// much again was allocated, and not after each few hundred requests of a small
// heap. Nobody touches it: it takes addresses, no memory.
const ballastBytes = 16 << 20

// proofWait is how long the first requests may be held up by engines that are
// slow to prove that they keep tenants apart. Until then they count as if they
// didn't.
const proofWait = 2 * time.Second

func (p *program) awaitProofs(ctx context.Context) {
	select {
	case <-p.gateway.IsolationProbed():
	case <-time.After(proofWait):
	case <-ctx.Done():
	}
}

// serve answers requests until ctx ends, lets running ones finish within the
// drain timeout, then ends what runs beside them and closes everything. ready
// is called once requests are answered.
func (p *program) serve(ctx context.Context, listeners []net.Listener, ready func() error) error {
	ops, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.cfg.OpsAddr)
	if err != nil {
		return errors.Join(fmt.Errorf("operators' listener (WEIR_OPS_ADDR): %w", err), closeAll(listeners), p.close())
	}
	p.cfg.OpsAddr = ops.Addr().String()

	// What runs beside the requests outlives them: receipts are still written
	// while the last streams end.
	lasting, stopLasting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLasting()
	background := p.runBackground(lasting)
	p.awaitProofs(ctx)
	ballast := make([]byte, ballastBytes)
	defer runtime.KeepAlive(ballast)

	public, private := p.server.HTTPServer("", p.server.Handler()), p.server.HTTPServer("", p.server.Ops())
	failed := make(chan error, len(listeners)+1)
	var serving sync.WaitGroup
	start := func(s *http.Server, l net.Listener, tls bool) {
		serving.Go(func() {
			var err error
			if tls {
				err = s.ServeTLS(l, p.cfg.TLSCert, p.cfg.TLSKey)
			} else {
				err = s.Serve(l)
			}
			if !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	for _, l := range listeners {
		start(public, l, p.cfg.TLSCert != "")
	}
	start(private, ops, false)

	err = ready()
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	drain, cancel := context.WithTimeout(lasting, p.cfg.DrainTimeout)
	defer cancel()
	if public.Shutdown(drain) != nil { // some still run: their contexts end now
		p.log.Warn("cutting requests that outlasted the drain timeout")
		_ = public.Close()
	}
	p.fleet.Close()
	_ = private.Close()
	serving.Wait()
	stopLasting()
	return errors.Join(err, background.Wait(), p.close())
}
