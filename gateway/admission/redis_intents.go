package admission

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Intents are in Redis in a hash for each tenant and replica, by request id,
// the progress beside them under the id and a plus sign. A set for each replica
// names the tenants that have one there.

const (
	// intentLife is how long the sets of a replica that died are kept.
	intentLife = 7 * 24 * time.Hour
	// maxIndexed bounds the tenants that a replica remembers to have named.
	maxIndexed = 1 << 17
	scanCount  = 500
)

func intentsKey(tenant, replica string) string { return "weir:{" + tenant + "}:intents:" + replica }

func tenantsKey(replica string) string { return "weir:{" + replica + "}:tenants" }

// index remembers which tenants the set of a replica names already: a tenant's
// first request costs a round trip of its own.
type index struct {
	mu    sync.Mutex
	named map[string]map[string]bool // by replica, tenant; one replica, tests apart
	count int
	last  map[string]*redis.BoolCmd // how the latest renewal of each set went
}

func newIndex() *index {
	return &index{named: map[string]map[string]bool{}, last: map[string]*redis.BoolCmd{}}
}

// add names a tenant, before its first intent is written: a set that lacks it
// would hide them.
func (x *index) add(ctx context.Context, client redis.UniversalClient, tenant, replica string) error {
	x.mu.Lock()
	known := x.named[replica][tenant]
	x.mu.Unlock()
	if known {
		return nil
	}
	key := tenantsKey(replica)
	_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.SAdd(ctx, key, tenant)
		p.Expire(ctx, key, intentLife)
		return nil
	})
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.count >= maxIndexed {
		x.forget()
	}
	if x.named[replica] == nil {
		x.named[replica] = map[string]bool{}
	}
	x.named[replica][tenant] = true
	x.count++
	return nil
}

// forget has every tenant named again. It holds mu.
func (x *index) forget() { x.named, x.count = map[string]map[string]bool{}, 0 }

// renew keeps the sets. If one was gone at the last renewal, Redis has lost its
// data, and the tenants are named again.
func (x *index) renew(ctx context.Context, p redis.Pipeliner) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for replica, last := range x.last {
		if there, err := last.Result(); err == nil && !there && x.named[replica] != nil {
			x.forget()
			break
		}
	}
	clear(x.last)
	for replica := range x.named {
		x.last[replica] = p.Expire(ctx, tenantsKey(replica), intentLife)
	}
}

// Checkpoint implements Intents. What Redis doesn't take is not noted: the next
// one says more.
func (r *Redis) Checkpoint(ctx context.Context, progress []Progress) error {
	var journaled []Progress
	marks := map[string][]any{}
	r.mu.Lock()
	for _, p := range progress {
		g, ok := r.held[p.Request]
		switch {
		case !ok || g.intent == nil:
		case g.journaled:
			journaled = append(journaled, p)
		default:
			key := intentsKey(g.tenant, g.intent.Replica)
			marks[key] = append(marks[key], p.Request, p.mark())
		}
	}
	r.mu.Unlock()
	if len(journaled) > 0 {
		if err := r.cfg.Journal.note(journaled); err != nil {
			return err
		}
	}
	if len(marks) == 0 || r.lost.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for key, args := range marks {
			p.Eval(ctx, markScript, []string{key}, args...)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("admission: checkpoint: %w", err)
	}
	return nil
}

// Orphans implements Intents.
func (r *Redis) Orphans(ctx context.Context, dead []string, most int) ([]Intent, error) {
	var found []Intent
	if r.cfg.Journal != nil {
		found = r.cfg.Journal.left(most)
	}
	for _, replica := range dead {
		tenants, err := r.client.SMembers(ctx, tenantsKey(replica)).Result()
		if err != nil {
			return nil, fmt.Errorf("admission: find orphans of %s: %w", replica, err)
		}
		for _, tenant := range tenants {
			if len(found) >= most {
				return found, nil
			}
			if found, err = r.orphansOf(ctx, tenant, replica, most, found); err != nil {
				return nil, fmt.Errorf("admission: find orphans of %s: %w", replica, err)
			}
		}
	}
	return found, nil
}

// orphansOf appends one tenant's at a replica.
func (r *Redis) orphansOf(ctx context.Context, tenant, replica string, most int, found []Intent) ([]Intent, error) {
	key, before := intentsKey(tenant, replica), len(found)
	for cursor := uint64(0); ; {
		pairs, next, err := r.client.HScan(ctx, key, cursor, "", scanCount).Result()
		if err != nil {
			return nil, err
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			if strings.HasSuffix(pairs[i], "+") || len(found) >= most {
				continue
			}
			in, err := decodeIntent([]byte(pairs[i+1]))
			if err != nil {
				return nil, err
			}
			found = append(found, in)
		}
		if cursor = next; cursor == 0 || len(found) >= most {
			break
		}
	}
	fresh := found[before:]
	if len(fresh) == 0 {
		return found, nil
	}
	fields := make([]string, len(fresh))
	for i := range fresh {
		fields[i] = fresh[i].Request + "+"
	}
	marks, err := r.client.HMGet(ctx, key, fields...).Result()
	if err != nil {
		return nil, err
	}
	for i, mark := range marks {
		if text, ok := mark.(string); ok {
			fresh[i].note(text)
		}
	}
	return found, nil
}

// Forget implements Intents.
func (r *Redis) Forget(ctx context.Context, settled []Intent) error {
	if len(settled) == 0 {
		return nil
	}
	if r.cfg.Journal != nil {
		if err := r.cfg.Journal.forget(settled); err != nil {
			return err
		}
	}
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range settled {
			in := &settled[i]
			p.HDel(ctx, intentsKey(in.Tenant, in.Replica), in.Request, in.Request+"+")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("admission: forget orphans: %w", err)
	}
	return nil
}
