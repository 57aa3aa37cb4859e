// Package primary decides which of several schedulers serves, by a lease in
// Postgres. Postgres' clock alone says when the lease has expired; the holder
// measures no more than how long ago it asked. So the machines' clocks need not
// agree, only run at about one pace.
package primary

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is Postgres as weir_worker: a pool.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Config sets a Lease. Zero fields take the default that is named with them.
type Config struct {
	Name string        // of the schedulers of which one is to serve ("default")
	TTL  time.Duration // of the lease, and so the most that a dead holder is missed (5 s)
	// Changed is called when the lease was gained or lost, by one goroutine at a
	// time, and after Held says so. Nil is fine.
	Changed func(held bool)
	Now     func() time.Time // nil: time.Now
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "default")
	c.TTL = cmp.Or(c.TTL, 5*time.Second)
	if c.Changed == nil {
		c.Changed = func(bool) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// parts is how often the lease is renewed in its time, and which part of it the
// holder leaves unused: for its clock's pace, and for what it has just said to
// arrive.
const parts = 5

// Lease is one scheduler's part in who is the primary. It is safe for
// concurrent use.
type Lease struct {
	log *slog.Logger
	db  DB
	cfg Config
	id  string

	mu    sync.Mutex
	epoch int64     // of the last lease that was held
	until time.Time // when it stops being held
	other bool      // the last answer was that another holds it
}

// New returns a Lease that is not held: Run competes for it.
func New(log *slog.Logger, db DB, cfg Config) *Lease {
	return &Lease{log: log, db: db, cfg: cfg.withDefaults(), id: "sch_" + strings.ToLower(rand.Text())}
}

// Held reports whether this scheduler is the primary now. It is false before
// another one can be: a holder that can't renew gives up a fifth of the TTL
// before the lease expires.
func (l *Lease) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held(l.cfg.Now())
}

// held asks both clocks: the monotonic one stands still while a machine is
// suspended, and the other one may be set back.
func (l *Lease) held(now time.Time) bool {
	return now.Before(l.until) && now.Round(0).Before(l.until.Round(0))
}

// Epoch is the number of the lease that is or was last held; 0 for none. It
// rises with every change of hands.
func (l *Lease) Epoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// Term is the lease's name and epoch in words, for those who compare two.
func (l *Lease) Term() string { return fmt.Sprintf("%s/%d", l.cfg.Name, l.Epoch()) }

// State says for operators what this scheduler is: nil for the primary.
func (l *Lease) State() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.held(l.cfg.Now()):
		return nil
	case l.other:
		return errors.New("standby: another scheduler is the primary")
	default:
		return errors.New("standby: the lease is not known to be held by anybody (is Postgres away?)")
	}
}

// Run competes for the lease, and renews it while it is held, until ctx ends.
// Then it gives the lease up, so that another need not wait for its end.
func (l *Lease) Run(ctx context.Context) error {
	every := l.cfg.TTL / parts
	var was, failing bool
	report := func() {
		if is := l.Held(); is != was {
			was = is
			l.log.Info("scheduler lease", "held", is, "name", l.cfg.Name, "epoch", l.Epoch())
			l.cfg.Changed(is)
		}
	}
	for ctx.Err() == nil {
		next := l.cfg.Now().Add(every)
		err := l.hold(ctx)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			if failing = failed; failed {
				l.log.Warn("the scheduler lease can't be asked for", "name", l.cfg.Name, "error", err)
			}
		}
		report()
		l.pause(ctx, next, report)
	}
	if l.drop() {
		report()
		l.yield(context.WithoutCancel(ctx))
	}
	return nil
}

// pause waits until next, and reports a lease that runs out meanwhile.
func (l *Lease) pause(ctx context.Context, next time.Time, report func()) {
	for ctx.Err() == nil {
		l.mu.Lock()
		now, wake := l.cfg.Now(), next
		if l.held(now) && l.until.Before(wake) {
			wake = l.until
		}
		l.mu.Unlock()
		timer := time.NewTimer(wake.Sub(now))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		report()
		if !l.cfg.Now().Before(next) {
			return
		}
	}
}

// hold asks for the lease once. An answer is waited for no longer than what is
// held lasts, so that its end isn't missed.
func (l *Lease) hold(ctx context.Context) error {
	sent := l.cfg.Now()
	l.mu.Lock()
	wait := l.cfg.TTL / 2
	if l.held(sent) {
		wait = min(wait, l.until.Sub(sent))
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var got *int64
	err := l.db.QueryRow(ctx, `SELECT weir_hold_scheduler($1, $2, $3)`, l.cfg.Name, l.id, l.cfg.TTL).Scan(&got)
	if err != nil {
		l.mu.Lock()
		l.other = false
		l.mu.Unlock()
		return fmt.Errorf("scheduler lease %s: %w", l.cfg.Name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.other = got == nil
	if got == nil {
		l.until = time.Time{}
		return nil
	}
	l.epoch, l.until = *got, sent.Add(l.cfg.TTL-l.cfg.TTL/parts)
	return nil
}

// drop ends the lease here, and reports whether it was held.
func (l *Lease) drop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.held(l.cfg.Now())
	l.until, l.other = time.Time{}, false
	return held
}

// yield leaves the lease to the others.
func (l *Lease) yield(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.TTL)
	defer cancel()
	if _, err := l.db.Exec(ctx, `SELECT weir_yield_scheduler($1, $2, $3)`, l.cfg.Name, l.id, l.Epoch()); err != nil {
		l.log.Warn("the scheduler lease could not be given up: it expires by itself", "name", l.cfg.Name, "error", err)
	}
}
