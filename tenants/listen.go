package tenants

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// listen follows the announcements of changes over a connection of its own and
// takes a new one, after a pause, whenever it is lost, until ctx ends.
func (k *Keys) listen(ctx context.Context) {
	const shortest, longest = 100 * time.Millisecond, 3 * time.Second
	pause := shortest
	for {
		heard, err := k.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pause = shortest
		}
		k.log.WarnContext(ctx, "changes of keys are not announced, trying again", "error", err, "pause_ms", pause.Milliseconds())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// follow listens until the connection fails. It reports whether it ever heard.
func (k *Keys) follow(ctx context.Context) (heard bool, err error) {
	connecting, cancel := context.WithTimeout(ctx, k.cfg.LookupTimeout)
	defer cancel()
	pooled, err := k.worker.Acquire(connecting)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack() // it is busy for ever: the pool may open another
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(connecting, `LISTEN weir_auth`); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	// Only now: a change before LISTEN was announced to nobody here.
	k.distrustAll()
	k.listening.Store(true)
	defer k.listening.Store(false)
	for {
		waiting, cancel := context.WithTimeout(ctx, k.cfg.TTL)
		notice, err := conn.WaitForNotification(waiting)
		quiet := err != nil && waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			k.forget(notice.Payload)
		case quiet: // a peer that vanished without a word looks like this too
			pinging, cancel := context.WithTimeout(ctx, k.cfg.LookupTimeout)
			err = conn.Ping(pinging)
			cancel()
			if err != nil {
				return true, fmt.Errorf("ping: %w", err)
			}
		default:
			return true, fmt.Errorf("wait for changes: %w", err)
		}
	}
}

// forget drops what an announcement names, and has the guarded keys that it
// touches checked.
func (k *Keys) forget(payload string) {
	plan, isPlan := strings.CutPrefix(payload, "plan:")
	switch {
	case strings.HasPrefix(payload, "key_"):
		k.cache.dropKey(KeyID(payload))
		k.guards.suspect(KeyID(payload))
	case strings.HasPrefix(payload, "ten_"):
		k.cache.dropIf(func(p *Principal) bool { return p.Tenant == ID(payload) })
		k.guards.suspectIf(func(p *Principal) bool { return p.Tenant == ID(payload) })
	case strings.HasPrefix(payload, "prj_"):
		k.cache.dropIf(func(p *Principal) bool { return p.Project == ProjectID(payload) })
	case isPlan:
		k.cache.dropIf(func(p *Principal) bool { return p.Plan.Name == plan })
	default: // from a newer version: it may mean anything
		k.distrustAll()
	}
}

func (k *Keys) distrustAll() {
	k.cache.distrustAll()
	k.guards.suspectIf(func(*Principal) bool { return true })
}
