package tenants

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"
)

// KeysConfig sets the bounds of Keys. Zero takes the default.
type KeysConfig struct {
	CacheSize     int           // keys remembered; 50,000
	TTL           time.Duration // how long a good key, or a quiet connection, is believed without asking; 5s
	NegativeTTL   time.Duration // the same for keys that are refused; 2s
	StaleMax      time.Duration // how long a key already seen works while Postgres is away; 30s
	LookupTimeout time.Duration // of one question to Postgres; 2s
	Recheck       time.Duration // between two checks of guarded keys; 4s
	FlushEvery    time.Duration // between two writes of last use; 60s
}

func (c KeysConfig) withDefaults() KeysConfig {
	if c.CacheSize <= 0 {
		c.CacheSize = 50_000
	}
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&c.TTL, 5 * time.Second},
		{&c.NegativeTTL, 2 * time.Second},
		{&c.StaleMax, 30 * time.Second},
		{&c.LookupTimeout, 2 * time.Second},
		{&c.Recheck, 4 * time.Second},
		{&c.FlushEvery, time.Minute},
	} {
		if *d.value <= 0 {
			*d.value = d.fallback
		}
	}
	return c
}

// Keys tells who is calling. It remembers what it learned for a few seconds,
// forgets at once what Postgres announces as changed, and ends the requests of
// keys that were taken away. It is safe for concurrent use.
type Keys struct {
	log     *slog.Logger
	worker  *pgxpool.Pool
	peppers Peppers
	cfg     KeysConfig
	now     func() time.Time

	cache     *cache
	flight    singleflight.Group
	lookups   chan struct{} // bounds the connections that look-ups take
	failedAt  atomic.Int64  // when a look-up last failed, Unix nanoseconds
	listening atomic.Bool
	guards    *guards

	usedMu sync.Mutex
	used   map[KeyID]use
}

// NewKeys returns an authenticator on the worker's pool. Without Run it works,
// but learns of changes by the age of its entries alone and cuts no request.
func NewKeys(log *slog.Logger, worker *pgxpool.Pool, peppers Peppers, cfg KeysConfig, now func() time.Time) *Keys {
	cfg = cfg.withDefaults()
	return &Keys{
		log:     log,
		worker:  worker,
		peppers: peppers,
		cfg:     cfg,
		now:     now,
		cache:   newCache(cfg.CacheSize),
		lookups: make(chan struct{}, max(1, worker.Config().MaxConns/2)),
		guards:  newGuards(),
		used:    make(map[KeyID]use),
	}
}

// Run follows changes, checks guarded keys and writes down when keys were last
// used, until ctx ends. The pool must live until it returns, always nil.
func (k *Keys) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { k.listen(ctx) })
	parts.Go(func() { k.watch(ctx) })
	parts.Go(func() { k.flush(ctx) })
	parts.Wait()
	return nil
}

// Listening reports whether changes are announced to this process now. While
// they are not, a revoked key works for up to TTL.
func (k *Keys) Listening() bool { return k.listening.Load() }

// Authenticate returns the principal of a presented key that is used from the
// client's address. Errors: ErrBadKey (whatever is wrong with the key itself),
// ErrSuspended, ErrAddress, ErrUnavailable, or that of ctx. The principal is
// shared: it must not be changed.
func (k *Keys) Authenticate(ctx context.Context, secret string, client netip.Addr) (*Principal, error) {
	if _, err := ParseSecret(secret); err != nil {
		return nil, err
	}
	d := digest(sha256.Sum256([]byte(secret)))
	now := k.now()
	e, fresh := k.cache.get(d, now)
	if !fresh {
		var err error
		if e, err = k.refresh(ctx, d, secret, e); err != nil {
			return nil, err
		}
		now = k.now()
	}
	if e == nil {
		return nil, ErrUnknownKey
	}
	if err := e.found.judge(client, now); err != nil {
		return nil, err
	}
	k.noteUse(e, now)
	return e.found.principal, nil
}

// refresh asks Postgres, once for all who ask for the same key at a time. While
// Postgres is away the old entry serves until it is too old.
func (k *Keys) refresh(ctx context.Context, d digest, secret string, old *entry) (*entry, error) {
	// After a failure those who can do without ask again only a while later:
	// nobody should wait for a time limit at each request.
	const pause = time.Second
	if k.now().Sub(time.Unix(0, k.failedAt.Load())) < pause && k.mayServe(old) {
		return old, nil
	}
	// The look-up outlives a caller who leaves, as others may wait for it too.
	answer := k.flight.DoChan(string(d[:]), func() (any, error) {
		return k.load(context.WithoutCancel(ctx), d, secret)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case got := <-answer:
		if got.Err == nil {
			return got.Val.(*entry), nil
		}
		k.failedAt.Store(k.now().UnixNano())
		if !k.mayServe(old) {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, got.Err)
		}
		k.log.WarnContext(ctx, "serving known keys without asking", "error", got.Err)
		return old, nil
	}
}

// mayServe is false for an entry that a change took out of the cache meanwhile.
func (k *Keys) mayServe(old *entry) bool {
	return old != nil && k.now().Sub(old.loaded) < k.cfg.StaleMax && k.cache.holds(old.found.principal)
}
