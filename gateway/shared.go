package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/tenants"
)

// sharedQueue is the queue of a pool that other replicas share: its scheduler
// is another process. It lives for as long as the pool's settings don't change.
type sharedQueue struct {
	remote  remote
	list    *llmd.Standby       // of the processes that may schedule; nil with gateway
	gateway *eppGateway         // the remote that is reached by plain HTTP; else nil
	fault   error               // why it can't be used at all
	standIn scheduler.Scheduler // for plans that want one; nil where the pool's endpoints aren't known
	told    told

	objectives *objectives

	refused, stoodIn atomic.Uint64 // requests that came while no scheduler answered

	mu      sync.Mutex
	live    int // calls of Schedule and leases
	retired bool
	next    scheduler.Scheduler // what took its place
	idle    chan struct{}       // closed once it has retired and nothing of it lives
	running bool
}

// remote asks another process. Close refuses what waits, Wait returns when
// nothing of a closed one runs any more.
type remote interface {
	scheduler.Scheduler
	Close()
	Wait()
}

// noSchedulerRetry is how long a caller is told to wait while no scheduler
// answers: a standby takes over sooner.
const noSchedulerRetry = 2 * time.Second

// Schedule waits in the flow's queue of the shared scheduler.
func (q *sharedQueue) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	return q.schedule(ctx, r, nil)
}

// schedule is Schedule with what takes over where no scheduler answers; nil:
// nobody.
func (q *sharedQueue) schedule(ctx context.Context, r scheduler.Request, standIn scheduler.Scheduler) (scheduler.Lease, error) {
	if next, entered := q.enter(); !entered {
		if next == nil {
			return nil, &scheduler.Refusal{Reason: scheduler.ShuttingDown}
		}
		if other, shared := next.(*sharedQueue); shared && standIn != nil { // the plan's wish goes along
			return other.schedule(ctx, r, other.standIn)
		}
		return next.Schedule(ctx, r)
	}
	began := time.Now()
	lease, err := q.ask(ctx, r)
	if err == nil {
		return lease, nil // which leaves when it ends
	}
	defer q.leave()
	if !llmd.Undecided(err) || ctx.Err() != nil {
		return nil, err
	}
	if standIn == nil {
		q.refused.Add(1)
		return nil, err
	}
	q.stoodIn.Add(1)
	return standIn.Schedule(ctx, waitedSince(began, r))
}

// waitedSince is a request that has waited since began: it keeps its place, and
// the rest of its time.
func waitedSince(began time.Time, r scheduler.Request) scheduler.Request {
	waited := time.Since(began)
	if waited < time.Millisecond { // it didn't: nobody answered at once
		return r
	}
	if r.QueuedAt.IsZero() {
		r.QueuedAt = began
	}
	if r.TTL > 0 {
		if r.TTL -= waited; r.TTL <= 0 {
			r.TTL = -1
		}
	}
	return r
}

// ask asks the shared scheduler, and remembers what came of it.
func (q *sharedQueue) ask(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	note := q.told.begin(&r, time.Now())
	if q.fault != nil {
		err := &scheduler.Refusal{
			Reason: scheduler.NoEndpoints, RetryAfter: noSchedulerRetry, Err: fmt.Errorf("%w: %w", llmd.ErrNoScheduler, q.fault),
		}
		q.told.refused(note, err)
		return nil, err
	}
	lease, err := q.remote.Schedule(ctx, r)
	if err != nil {
		err = ownTrouble(err)
		q.told.refused(note, err)
		return nil, err
	}
	q.told.dispatched(note, lease)
	return &sharedLease{Lease: lease, queue: q, note: note}, nil
}

// ownTrouble is err; where the scheduler failed by itself, which is no fault of
// the gateway's, as what it is to the caller: no endpoint for now.
func ownTrouble(err error) error {
	refusal, ok := errors.AsType[*scheduler.Refusal](err)
	if !ok || refusal.Reason != scheduler.Internal {
		return err
	}
	return &scheduler.Refusal{Reason: scheduler.NoEndpoints, RetryAfter: noSchedulerRetry, Waited: refusal.Waited, Err: refusal.Err}
}

// enter counts a call. Where the queue has retired, next is what to ask; nil
// once the fleet is closed.
func (q *sharedQueue) enter() (next scheduler.Scheduler, entered bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.retired {
		return q.next, false
	}
	q.live++
	return nil, true
}

func (q *sharedQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.live--
	q.rest()
}

// retire takes nothing new: that goes to next. What waits and runs goes on.
func (q *sharedQueue) retire(next scheduler.Scheduler) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.retired {
		q.retired, q.next = true, next
		q.rest()
	}
}

// rest holds mu.
func (q *sharedQueue) rest() {
	if q.retired && q.live == 0 {
		close(q.idle)
	}
}

// close refuses what waits, and whatever comes later.
func (q *sharedQueue) close() {
	q.retire(nil)
	if q.remote != nil {
		q.remote.Close()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.running && q.list != nil {
		q.list.Close()
	}
}

// start reports whether run is to be called: once.
func (q *sharedQueue) start() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := !q.running && !q.retired
	q.running = q.running || first
	return first
}

// run watches the schedulers until ctx ends, or the queue has retired and
// nothing of it lives. It returns when their connections are closed.
func (q *sharedQueue) run(ctx context.Context) {
	var watches sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	watches.Go(func() { q.objectives.watch(watching) })
	if q.list != nil {
		watches.Go(func() { _ = q.list.Run(watching) }) // always nil
	}
	select {
	case <-ctx.Done():
	case <-q.idle:
	}
	stop()
	watches.Wait()
	if q.list != nil {
		q.remote.Close()
		q.remote.Wait()
		q.list.Close()
	}
}

// sharedLease is a lease that a shared scheduler gave.
type sharedLease struct {
	scheduler.Lease

	queue *sharedQueue
	note  *note
	once  sync.Once
}

// End gives the endpoint back.
func (l *sharedLease) End(o scheduler.Outcome) {
	l.Lease.End(o)
	l.once.Do(func() {
		l.queue.told.ended(l.note, l.Lease)
		l.queue.leave()
	})
}

// standingIn is a sharedQueue for the requests of a plan that wants to be served
// without its scheduler.
type standingIn struct{ *sharedQueue }

// Schedule waits in the shared queue, and in one of this replica's own while no
// scheduler answers.
func (q standingIn) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	return q.schedule(ctx, r, q.standIn)
}

// queueFor is the pool's queue as the plan has it.
func queueFor(s scheduler.Scheduler, plan *tenants.Plan) scheduler.Scheduler {
	q, ok := s.(*sharedQueue)
	if !ok || plan.WhenNoScheduler != tenants.StandIn || q.standIn == nil {
		return s
	}
	return standingIn{q}
}
