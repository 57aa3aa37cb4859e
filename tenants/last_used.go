package tenants

import (
	"context"
	"fmt"
	"time"
)

// use is when a key was used last.
type use struct {
	tenant ID
	at     time.Time
}

// noteUse remembers that a key was used, to the minute: all but the first use
// in a minute cost one load.
func (k *Keys) noteUse(e *entry, now time.Time) {
	minute := now.Unix() / 60
	if e.usedMinute.Load() == minute || e.usedMinute.Swap(minute) == minute {
		return
	}
	p := e.found.principal
	k.usedMu.Lock()
	defer k.usedMu.Unlock()
	if _, there := k.used[p.Key]; there || len(k.used) < k.cfg.CacheSize {
		k.used[p.Key] = use{tenant: p.Tenant, at: now}
	}
}

// flush writes the uses down every so often, and the last ones when ctx ends.
func (k *Keys) flush(ctx context.Context) {
	tick := time.NewTicker(k.cfg.FlushEvery)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case <-tick.C:
		}
		// A write that has begun is finished, and the last one begins after the end.
		if err := k.writeUses(context.WithoutCancel(ctx)); err != nil {
			k.log.WarnContext(ctx, "last uses of keys are lost", "error", err)
		}
	}
}

// writeUses stores all uses since the last time in one statement. Those of a
// failed write are lost: a key that still works is soon used again.
func (k *Keys) writeUses(ctx context.Context) error {
	k.usedMu.Lock()
	used := k.used
	k.used = make(map[KeyID]use)
	k.usedMu.Unlock()
	if len(used) == 0 {
		return nil
	}
	var (
		tenants = make([]ID, 0, len(used))
		keys    = make([]KeyID, 0, len(used))
		times   = make([]time.Time, 0, len(used))
	)
	for id, u := range used {
		tenants, keys, times = append(tenants, u.tenant), append(keys, id), append(times, u.at)
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.LookupTimeout)
	defer cancel()
	if _, err := k.worker.Exec(ctx, `SELECT weir_touch_keys($1, $2, $3)`, tenants, keys, times); err != nil {
		return fmt.Errorf("note the use of %d keys: %w", len(keys), err)
	}
	return nil
}
