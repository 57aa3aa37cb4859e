package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"weir/billing"
)

const (
	pollEvery  = 30 * time.Second // where announcements are lost
	retryFirst = time.Second      // before the first attempt to listen again; each next one waits twice as long
	retryMost  = 15 * time.Second
)

// Store keeps the newest snapshot. It is safe for concurrent use.
type Store struct {
	log    *slog.Logger
	app    *pgxpool.Pool
	worker billing.Querier

	loading sync.Mutex      // held while the catalogue is read
	own     []billing.Price // of single tenants, by version

	mu       sync.RWMutex
	snapshot *Snapshot
	changed  chan struct{} // closed when snapshot is replaced
}

// NewStore returns a store whose snapshot is empty until Load. The prices of
// single tenants are read as weir_worker, all else as weir_app.
func NewStore(log *slog.Logger, app *pgxpool.Pool, worker billing.Querier) *Store {
	return &Store{log: log, app: app, worker: worker, snapshot: newSnapshot(&Document{}, nil), changed: make(chan struct{})}
}

// Snapshot is the newest catalogue that could be read.
func (s *Store) Snapshot() *Snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.snapshot
}

// Changed returns a channel that is closed when the present snapshot is
// replaced. Take it before the snapshot, or a change between them is missed.
func (s *Store) Changed() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.changed
}

// Load reads the catalogue. On an error, and where nothing has changed, the last
// good snapshot stays.
func (s *Store) Load(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	fresh, err := Load(ctx, s.app)
	if err != nil {
		return err
	}
	own, err := billing.LoadTenantPrices(ctx, s.worker, s.newestOwn())
	if err != nil {
		return err
	}
	if len(own) == 0 && s.Snapshot().equal(fresh) {
		return nil
	}
	s.own = append(s.own, own...)
	fresh.Prices = fresh.Prices.With(s.own)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshot = fresh
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// newestOwn is the last version of single tenants' prices that was read.
func (s *Store) newestOwn() int64 {
	if len(s.own) == 0 {
		return 0
	}
	return s.own[len(s.own)-1].Version
}

// Run follows the announcements of changes, and reads again every 30 s in case
// one was lost, until ctx ends. It returns nil.
func (s *Store) Run(ctx context.Context) error {
	for wait := retryFirst; ctx.Err() == nil; wait = min(2*wait, retryMost) {
		began := time.Now()
		if err := s.follow(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("catalogue: the last one read stays in use", slog.Any("error", err))
		}
		if time.Since(began) > pollEvery { // it worked for a while
			wait = retryFirst
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// follow listens on a connection of its own until that breaks.
func (s *Store) follow(ctx context.Context) error {
	pooled, err := s.app.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen for changes: %w", err)
	}
	conn := pooled.Hijack()                      // LISTEN must not go back into the pool
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on how it ends
	if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return fmt.Errorf("listen for changes: %w", err)
	}
	for {
		if err := s.Load(ctx); err != nil { // first, for what changed before we listened
			return err
		}
		wait, cancel := context.WithTimeout(ctx, pollEvery)
		_, err := conn.WaitForNotification(wait)
		cancel()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return fmt.Errorf("listen for changes: %w", err)
		}
	}
}
