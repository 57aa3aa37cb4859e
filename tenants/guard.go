package tenants

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Guard returns a context that ends, with the cause ErrRevoked, when the
// principal's key is revoked or expires or its tenant is suspended: at once
// where that is announced, at the next check of all guarded keys where the
// announcement is lost. While Postgres can't be asked, only expiry ends it.
// Release must be called when the request is over.
func (k *Keys) Guard(ctx context.Context, p *Principal) (guarded context.Context, release func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	g := &guard{principal: p, cancel: cancel}
	if !p.ExpiresAt.IsZero() {
		g.expiry = time.AfterFunc(p.ExpiresAt.Sub(k.now()), func() { cancel(ErrRevoked) })
	}
	k.guards.add(g)
	// A change that was announced between authentication and here found no
	// guard. It also took the principal out of the cache.
	if !k.cache.holds(p) {
		k.guards.suspect(p.Key)
	}
	return guarded, func() {
		k.guards.remove(g)
		if g.expiry != nil {
			g.expiry.Stop()
		}
		cancel(nil)
	}
}

type guard struct {
	principal *Principal
	cancel    context.CancelCauseFunc
	expiry    *time.Timer
}

// guards are the running requests by the key that they run under. One
// goroutine, watch, serves them all.
type guards struct {
	mu    sync.Mutex
	byKey map[KeyID]map[*guard]struct{}
	due   map[KeyID]ID  // keys to check now
	wake  chan struct{} // holds one: due is not empty
}

func newGuards() *guards {
	return &guards{
		byKey: make(map[KeyID]map[*guard]struct{}),
		due:   make(map[KeyID]ID),
		wake:  make(chan struct{}, 1),
	}
}

func (gs *guards) add(g *guard) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	set := gs.byKey[g.principal.Key]
	if set == nil {
		set = make(map[*guard]struct{})
		gs.byKey[g.principal.Key] = set
	}
	set[g] = struct{}{}
}

func (gs *guards) remove(g *guard) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	set := gs.byKey[g.principal.Key]
	delete(set, g)
	if len(set) == 0 {
		delete(gs.byKey, g.principal.Key)
	}
}

// suspect has a key checked now, if anything runs under it.
func (gs *guards) suspect(id KeyID) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.collect(id)
	gs.rouse()
}

// suspectIf has all keys of matching principals checked now.
func (gs *guards) suspectIf(match func(*Principal) bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for id, set := range gs.byKey {
		for g := range set {
			if match(g.principal) {
				gs.collect(id)
				break
			}
		}
	}
	gs.rouse()
}

// take returns the keys to check: all that are guarded, or those that are due.
func (gs *guards) take(all bool) (tenants []ID, keys []KeyID) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if all {
		for id := range gs.byKey {
			gs.collect(id)
		}
	}
	for id, tenant := range gs.due {
		tenants, keys = append(tenants, tenant), append(keys, id)
	}
	clear(gs.due)
	return tenants, keys
}

// collect holds mu.
func (gs *guards) collect(id KeyID) {
	for g := range gs.byKey[id] {
		gs.due[id] = g.principal.Tenant // the same for all guards of a key
		return
	}
}

// rouse holds mu.
func (gs *guards) rouse() {
	if len(gs.due) == 0 {
		return
	}
	select {
	case gs.wake <- struct{}{}:
	default: // it is about to look
	}
}

// cut ends all requests under a key.
func (gs *guards) cut(id KeyID) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for g := range gs.byKey[id] {
		g.cancel(ErrRevoked)
	}
}

// watch checks guarded keys when something was announced, and all of them
// every so often, until ctx ends.
func (k *Keys) watch(ctx context.Context) {
	tick := time.NewTicker(k.cfg.Recheck)
	defer tick.Stop()
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case <-k.guards.wake:
		case <-tick.C:
			all = true
		}
		if err := k.check(ctx, all); err != nil && ctx.Err() == nil {
			k.log.WarnContext(ctx, "keys of running requests can't be checked", "error", err)
		}
	}
}

// check asks which of the keys still live and cuts the others. What fails here
// is made up for by the next check of all.
func (k *Keys) check(ctx context.Context, all bool) error {
	tenants, keys := k.guards.take(all)
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.LookupTimeout)
	defer cancel()
	rows, err := k.worker.Query(ctx, `SELECT key_id FROM weir_live_keys($1, $2)`, tenants, keys)
	if err != nil {
		return fmt.Errorf("check %d keys: %w", len(keys), err)
	}
	live := make(map[KeyID]bool, len(keys))
	var id KeyID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { live[id] = true; return nil }); err != nil {
		return fmt.Errorf("check %d keys: %w", len(keys), err)
	}
	for _, id := range keys {
		if !live[id] {
			k.guards.cut(id)
		}
	}
	return nil
}
