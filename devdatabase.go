package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"weir/migrations"
	"weir/migrations/pgserver"
	"weir/tenants"
)

// startDatabase gives the configuration its three URLs, from the environment
// or from a private server, and brings the schema up to date. A private server
// that ends by itself ends the playground: nothing would bring it back.
func (p *playground) startDatabase(ctx context.Context, end context.CancelCauseFunc, log *slog.Logger) error {
	if p.private = p.cfg.DatabaseURL == ""; p.private {
		server, err := pgserver.Start(ctx, pgserver.Config{
			Dir: p.state.path("postgres"), Durable: true, Log: log,
			Progress: func(text string) { p.say("%s", text) },
		})
		if err != nil {
			return err
		}
		var watch sync.WaitGroup
		watch.Go(func() {
			<-server.Done()
			end(fmt.Errorf("%w (its log: %s): start weir dev again", errDatabaseEnded, p.state.path("postgres", "postgres.log")))
		})
		p.later(func() {
			stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			_ = server.Stop(stopCtx)
			watch.Wait()
		})
		logins, err := migrations.Prepare(ctx, server.URL("postgres"), "weir", server.Secret())
		if err != nil {
			return err
		}
		p.cfg.OwnerURL, p.cfg.DatabaseURL, p.cfg.WorkerURL = Secret(logins.Owner), Secret(logins.App), Secret(logins.Worker)
		p.say("Postgres on 127.0.0.1:%d", server.Port())
		p.secret.PrivateURL = logins.App
		if err := p.state.saveSecrets(p.secret); err != nil {
			return err
		}
	}
	if p.cfg.OwnerURL == "" || p.cfg.WorkerURL == "" {
		return errors.New("WEIR_DATABASE_URL is set: set WEIR_WORKER_DATABASE_URL and WEIR_OWNER_DATABASE_URL too (docs/database.md)")
	}
	applied, err := migrations.Up(ctx, slog.New(slog.DiscardHandler), p.cfg.OwnerURL.Reveal()) // told below
	if len(applied) > 0 {
		p.say("%d migrations applied", len(applied))
	}
	return err
}

var errDatabaseEnded = errors.New("the private Postgres has ended")

// databaseEnded is why ctx ended, if that is why.
func databaseEnded(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errDatabaseEnded) {
		return cause
	}
	return nil
}

// seed makes a tenant and a key at the first start, and later tells whether
// the key still works.
func (p *playground) seed(ctx context.Context, weir *program) error {
	if p.secret.APIKey != "" {
		_, err := weir.keys.Authenticate(ctx, p.secret.APIKey, netip.MustParseAddr("127.0.0.1"))
		if err == nil {
			return nil
		}
		if !errors.Is(err, tenants.ErrBadKey) {
			return err
		}
		p.say("the last key is no longer valid: making a new one")
	}
	store := tenants.NewStore(weir.app, p.cfg.Peppers, time.Now)
	tenant, err := p.tenant(ctx, store)
	if err != nil {
		return err
	}
	projects, err := store.ListProjects(ctx, tenant)
	if err != nil {
		return err
	}
	secret, _, err := store.CreateKey(ctx, "weir dev", tenant, tenants.KeySpec{
		Kind: tenants.ProjectKey, Project: projects[0].ID, Name: "dev",
	})
	if err != nil {
		return err
	}
	p.secret.APIKey, p.secret.Tenant = secret.Reveal(), string(tenant)
	return p.state.saveSecrets(p.secret)
}

// tenant is the one of the last run, or a new one.
func (p *playground) tenant(ctx context.Context, store *tenants.Store) (tenants.ID, error) {
	if known := tenants.ID(p.secret.Tenant); known != "" {
		_, err := store.Tenant(ctx, known)
		if !errors.Is(err, tenants.ErrNotFound) {
			return known, err
		}
	}
	t, _, err := store.CreateTenant(ctx, "weir dev", "dev", "dev")
	return t.ID, err
}
