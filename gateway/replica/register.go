// Package replica knows which replicas of the gateway live. Each says so in
// Postgres every few seconds, and Postgres' clock alone decides who is late: the
// replicas' own need not agree.
package replica

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config sets a Register. Zero fields take the default that is named with them.
type Config struct {
	Beat time.Duration // between two signs of life (5 s)
	Dead time.Duration // silence after which a replica counts as dead (20 s)
	// Changed is called with the number of live replicas when that has changed,
	// by one goroutine at a time. Nil is fine.
	Changed func(live int)
	// Folder is where the id is kept while the process lives. It is this process's
	// alone, so that whose id Join finds there has ended without a word: it counts
	// no more. "" keeps none.
	Folder string
	Now    func() time.Time // nil: time.Now
}

func (c Config) withDefaults() Config {
	if c.Beat == 0 {
		c.Beat = 5 * time.Second
	}
	if c.Dead == 0 {
		c.Dead = 20 * time.Second
	}
	if c.Changed == nil {
		c.Changed = func(int) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// prefix is what ids begin with.
const prefix = "rep_"

// beatTimeout bounds one sign of life.
const beatTimeout = 3 * time.Second

// Register is one replica's entry among those that live, and what it knows of
// the others. It is safe for concurrent use.
type Register struct {
	log    *slog.Logger
	worker *pgxpool.Pool
	cfg    Config
	id     string

	live atomic.Int32

	mu          sync.Mutex
	since, last time.Time // its beats: since when without a gap, and the last
}

// NewRegister returns the entry of a new replica, under an id of its own. It is
// written by Join.
func NewRegister(log *slog.Logger, worker *pgxpool.Pool, cfg Config) *Register {
	r := &Register{log: log, worker: worker, cfg: cfg.withDefaults(), id: prefix + strings.ToLower(rand.Text())}
	r.live.Store(1)
	return r
}

// ID names this replica, for as long as its process lives.
func (r *Register) ID() string { return r.id }

// Live is how many replicas live as far as is known, this one among them. While
// Postgres is away it stays what it was.
func (r *Register) Live() int { return int(r.live.Load()) }

// Dead is how long a replica may be silent.
func (r *Register) Dead() time.Duration { return r.cfg.Dead }

// Join writes the entry, before the replica serves, in the place of the process
// before it on the same folder. Each has an id of its own: should that one live
// after all, its next sign of life counts again.
func (r *Register) Join(ctx context.Context) error {
	former, err := r.former()
	if err != nil {
		return err
	}
	if former != "" {
		if err := r.stopped(ctx, former); err != nil {
			return fmt.Errorf("take the place of replica %s: %w", former, err)
		}
	}
	if err := r.beat(ctx); err != nil || r.cfg.Folder == "" {
		return err
	}
	if err := os.WriteFile(r.file(), []byte(r.id), 0o600); err != nil {
		return fmt.Errorf("keep the replica's id: %w", err)
	}
	return nil
}

func (r *Register) file() string { return filepath.Join(r.cfg.Folder, "replica") }

// former is the id that the process before this one left; "" where there is none.
func (r *Register) former() (string, error) {
	if r.cfg.Folder == "" {
		return "", nil
	}
	text, err := os.ReadFile(r.file())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read the former replica's id: %w", err)
	case !strings.HasPrefix(string(text), prefix) || len(text) > 64:
		return "", nil // it was cut off while it was written
	default:
		return string(text), nil
	}
}

// Run says that this replica lives until ctx ends, and then that it has stopped.
func (r *Register) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.cfg.Beat)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			r.leave(context.WithoutCancel(ctx))
			return nil
		case <-ticker.C:
		}
		err := r.beat(ctx)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			failing = failed
			if failed {
				r.log.Warn("this replica can't say that it lives: the others will count without it", slog.Any("error", err))
			} else {
				r.log.Info("this replica counts among the live ones again")
			}
		}
	}
}

func (r *Register) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	var live int
	err := r.worker.QueryRow(ctx, `SELECT weir_beat($1, $2)`, r.id, r.cfg.Dead).Scan(&live)
	if err != nil {
		return fmt.Errorf("replica %s: sign of life: %w", r.id, err)
	}
	r.saw(live)
	return nil
}

// saw takes in a count. After a gap in which nobody may have reached Postgres
// the others look dead until they come back: for as long they count as before.
func (r *Register) saw(live int) {
	now := r.cfg.Now()
	r.mu.Lock()
	if r.last.IsZero() || now.Sub(r.last) > r.cfg.Dead {
		r.since = now
	}
	r.last = now
	r.mu.Unlock()
	if !r.Steady() {
		live = max(live, r.Live())
	}
	if int(r.live.Swap(int32(live))) != live { //nolint:gosec // a count of replicas
		r.cfg.Changed(live)
	}
}

// Steady reports whether this replica can tell who is gone: it has reached
// Postgres without a gap for as long as it takes to be dead, and did so lately.
// After a gap in which nobody may have reached it all others look dead until they
// come back, and this one learns of the gap only with its next beat.
func (r *Register) Steady() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.Sub(r.since) >= r.cfg.Dead && r.cfg.Now().Sub(r.last) <= r.cfg.Dead
}

func (r *Register) leave(ctx context.Context) {
	err := r.stopped(ctx, r.id)
	if err != nil {
		r.log.Warn("replica could not say that it stops: it counts until it is missed", slog.Any("error", err))
		return
	}
	if r.cfg.Folder != "" { // it has said so itself
		if err := os.Remove(r.file()); err != nil {
			r.log.Warn("the id of this replica is not forgotten", slog.Any("error", err))
		}
	}
}

// stopped notes that a replica has.
func (r *Register) stopped(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	_, err := r.worker.Exec(ctx, `SELECT weir_leave($1)`, id)
	return err
}

// Gone lists the replicas that have stopped, or were silent for so long, and were
// not forgotten, the longest gone first. It is empty while this replica isn't
// Steady.
func (r *Register) Gone(ctx context.Context, silence time.Duration) ([]string, error) {
	if !r.Steady() {
		return nil, nil
	}
	rows, err := r.worker.Query(ctx, `SELECT weir_dead_replicas($1)`, silence)
	if err != nil {
		return nil, fmt.Errorf("list dead replicas: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list dead replicas: %w", err)
	}
	return ids, nil
}

// Forget removes the entries of replicas of which nothing is left to be looked
// for. One that has come back keeps its own.
func (r *Register) Forget(ctx context.Context, ids []string) error {
	if _, err := r.worker.Exec(ctx, `SELECT weir_forget_replicas($1, $2)`, ids, r.cfg.Dead); err != nil {
		return fmt.Errorf("forget replicas: %w", err)
	}
	return nil
}
