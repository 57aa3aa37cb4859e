package responses

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/responses/eventlog"
	"weir/tenants"
)

// Events keeps the events of background streams: an *eventlog.Memory or an
// *eventlog.Redis.
type Events interface {
	Seats
	Append(ctx context.Context, key string, first int, e eventlog.Entry, end bool) error
	Restart(ctx context.Context, key string, first int, e eventlog.Entry) error
	Read(ctx context.Context, key string, after int, wait time.Duration) ([]eventlog.Entry, error)
	Drop(ctx context.Context, key string) error
}

// Seats bounds how many follow a stream at the same time.
type Seats interface {
	Hold(ctx context.Context, key, seat string, most int) (bool, error)
	Leave(ctx context.Context, key, seat string) error
}

// Keys says what a key may do: a *tenants.Keys.
type Keys interface {
	Principal(ctx context.Context, t tenants.ID, k tenants.KeyID) (*tenants.Principal, error)
	Guard(ctx context.Context, p *tenants.Principal) (context.Context, func())
}

// BackgroundDeps is what background runs need beside a Service.
type BackgroundDeps struct {
	Runs   *Runs
	Events Events
	Vault  *tenants.Vault
	Keys   Keys
	// Enqueue adds the job that calls Work, in the transaction.
	Enqueue func(ctx context.Context, tx pgx.Tx, id RunID) error

	PerTenant int           // runs of one tenant at once in this process; 16
	Beat      time.Duration // between two renewals of a run; 5 s
}

// Silence is how long a runner may not be heard of before its run is taken from
// it, and Overdue how late a job may be.
const (
	Silence = 20 * time.Second
	Overdue = 10 * time.Minute
)

// Background makes responses that outlive their requests: ordered by one
// replica, run by any. It is safe for concurrent use.
type Background struct {
	log     *slog.Logger
	service *Service
	deps    BackgroundDeps
	seats   *eventlog.Memory // while Events can't count readers, each process counts its own

	mu      sync.Mutex
	running map[string]context.CancelCauseFunc // by response
	busy    map[tenants.ID]*share
}

// share is what a tenant has of this process's places.
type share struct {
	runs     int
	deferred time.Time // when its waiting runs were last told that they wait for these
}

// NewBackground makes one on the service that makes the other responses.
func NewBackground(log *slog.Logger, s *Service, deps BackgroundDeps) *Background {
	if deps.PerTenant <= 0 {
		deps.PerTenant = 16
	}
	if deps.Beat <= 0 {
		deps.Beat = 5 * time.Second
	}
	return &Background{
		log: log, service: s, deps: deps, seats: eventlog.NewMemory(eventlog.Config{}, s.deps.Now),
		running: map[string]context.CancelCauseFunc{}, busy: map[tenants.ID]*share{},
	}
}

// Order stores a response that is to be made in the background, and the job
// that makes it. It returns the response as it stands: queued. What a caller is
// told of is on disk before, with what is to be done also.
func (b *Background) Order(ctx context.Context, r *Run, also func(context.Context, pgx.Tx) error) (id string, object []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream.begin(Queued)
	rec := r.record()
	if r.create.Stream {
		// Before the transaction: as soon as it is over somebody may run it,
		// and nobody may read it until then.
		b.append(ctx, RunID{rec.Owner.Tenant, r.id}, r.stream)
	}
	err = b.deps.Runs.Order(ctx, &Ordered{Record: rec, Request: r.create.body, ClientID: r.call.ClientRequestID, Also: also}, b.deps.Enqueue)
	if err != nil {
		_ = b.deps.Events.Drop(context.WithoutCancel(ctx), logKey(rec.Owner.Tenant, r.id)) // else it expires
		return "", nil, err
	}
	return r.id, rec.Object, nil
}

func logKey(t tenants.ID, id string) string { return string(t) + "/" + id }

const aboutEvents = "events|"

// append moves what a new stream holds to the log. Whoever comes back to a log that
// could not be written finds the finished response.
func (b *Background) append(ctx context.Context, id RunID, s *stream) {
	p, last := s.out, s.seq-1
	s.out = s.out[:0]
	if err := b.write(ctx, id, p, 0, last, s.ended); err != nil {
		b.log.WarnContext(ctx, "events of a background response not kept", "response", id.Response, "error", err)
	}
}

// write adds the events from the first number to the last to the log.
func (b *Background) write(ctx context.Context, id RunID, p []byte, first, last int, end bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	e, err := b.seal(ctx, id, p, last)
	if err != nil {
		return err
	}
	return b.deps.Events.Append(ctx, logKey(id.Tenant, id.Response), first, e, end)
}

func (b *Background) seal(ctx context.Context, id RunID, p []byte, last int) (eventlog.Entry, error) {
	keys, err := b.deps.Vault.Keys(ctx, id.Tenant)
	if err != nil {
		return eventlog.Entry{}, err
	}
	return eventlog.Entry{Last: last, Box: keys.Seal(p, aboutEvents+id.Response)}, nil
}

// storeTimeout bounds one step of a run that has to be written down.
const storeTimeout = 10 * time.Second

// Cancel ends a background response, wherever it runs. It returns the response
// as it is then: one that has ended stays as it is. Errors: ErrNotFound,
// ErrSynchronous.
func (b *Background) Cancel(ctx context.Context, o Owner, id string) ([]byte, error) {
	object, err := b.deps.Runs.Cancel(ctx, o, id)
	if err != nil {
		return nil, err
	}
	b.stop(id)
	return object, nil
}

// Delete makes a response unreadable; one that still runs is cancelled. The
// error is ErrNotFound where there is none.
func (b *Background) Delete(ctx context.Context, o Owner, id string) error {
	if _, err := b.Cancel(ctx, o, id); err != nil && !errors.Is(err, ErrSynchronous) {
		return err
	}
	if err := b.deps.Runs.store.Delete(ctx, o, id); err != nil {
		return err
	}
	_ = b.deps.Events.Drop(ctx, logKey(o.Tenant, id)) // else it expires
	return nil
}

// Why a run's context ends, beside a key that was revoked.
var (
	errOver        = errors.New("the response has ended, or another runs it")
	errInterrupted = errors.New("this process can't go on with it")
)

// stop ends a run in this process because the response has ended.
func (b *Background) stop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cancel := b.running[id]; cancel != nil {
		cancel(errOver)
	}
}

// enter takes a place for a run of the tenant's. False: it has its share of them.
// Tell says that this is to be said to those that wait.
func (b *Background) enter(t tenants.ID, now time.Time) (ok, tell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.busy[t]
	if s == nil {
		s = &share{deferred: now}
		b.busy[t] = s
	}
	if s.runs < b.deps.PerTenant {
		s.runs++
		return true, false
	}
	if tell = now.Sub(s.deferred) >= deferEvery; tell {
		s.deferred = now
	}
	return false, tell
}

// deferEvery is how often a tenant's waiting runs are told why they wait: well
// within Overdue.
const deferEvery = time.Minute

func (b *Background) leave(t tenants.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.busy[t]; s.runs == 1 {
		delete(b.busy, t)
	} else {
		s.runs--
	}
}

// hold notes a run of this process, so that it can be stopped. False: the process
// has not let go of it yet since it lost it.
func (b *Background) hold(response string, cancel context.CancelCauseFunc) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running[response] != nil {
		return false
	}
	b.running[response] = cancel
	return true
}

func (b *Background) drop(response string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, response)
}

// Reclaim finds runs whose runner vanished, and those whose job was lost, and
// has them looked at.
func (b *Background) Reclaim(ctx context.Context) error {
	n, err := b.deps.Runs.Reclaim(ctx, Silence, Overdue, b.deps.Enqueue)
	if n > 0 {
		b.log.WarnContext(ctx, "background runs taken from runners that were silent", "runs", n)
	}
	return err
}

// Run follows the announcements of responses that ended elsewhere, until ctx
// ends. Without it a run learns of its end at its next renewal.
func (b *Background) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := b.listen(ctx)
		if ctx.Err() != nil {
			break
		}
		b.log.WarnContext(ctx, "cancelled responses are not announced, trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil //nolint:nilerr // ctx has ended: that is how it stops
}

// listen hears announcements until its connection fails.
func (b *Background) listen(ctx context.Context) error {
	pooled, err := b.deps.Runs.worker.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack() // it is busy for ever: the pool may open another
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, `LISTEN weir_runs`); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		notice, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("wait for announcements: %w", err)
		}
		b.stop(notice.Payload)
	}
}
