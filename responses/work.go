package responses

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/sjson"

	"weir/gateway"
	"weir/responses/eventlog"
	"weir/tenants"
)

// Again says that a run is not over, and when to look at it next.
type Again struct{ After time.Duration } //nolint:errname // it is read as a word: return &Again{...}

func (a *Again) Error() string { return fmt.Sprintf("not yet: look again in %v", a.After) }

const (
	// maxLost is how many runners may vanish until a run has failed: one that
	// takes its replica down with it must not take all of them.
	maxLost = 2
	// maxWait is how long a run waits for capacity before it fails.
	maxWait = 24 * time.Hour

	retryPause  = 5 * time.Second
	longestWait = time.Minute
)

// Work makes one background response of the tenant of id: the first that waits,
// which need not be that of id. Of a tenant there are as many jobs as there are
// responses to be made, so that each is made in its turn. The error is an *Again
// where there is something to be looked at later; of any other, a job may be
// tried again as it likes.
func (b *Background) Work(ctx context.Context, id RunID) error {
	ok, tell := b.enter(id.Tenant, time.Now())
	if !ok {
		if tell {
			if err := b.deps.Runs.Defer(ctx, id.Tenant); err != nil {
				b.log.WarnContext(ctx, "background runs that wait look as if their jobs were lost", "error", err)
			}
		}
		return &Again{After: time.Second}
	}
	defer b.leave(id.Tenant)
	runner := rand.Text()
	c, err := b.deps.Runs.Claim(ctx, id.Tenant, runner)
	if c == nil || err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &work{b: b, claimed: c, runner: runner, shown: c.Shown}
	if !b.hold(c.Response, cancel) {
		return w.release(ctx, retryPause, false)
	}
	defer b.drop(c.Response)
	return w.run(ctx, cancel)
}

// work is one run in the hands of this process.
type work struct {
	b       *Background
	claimed *Claimed
	runner  string
	made    *Run
	answer  *answer
	next    int  // number of the next event that the log lacks
	shown   bool // output of it
	muted   bool // its events are not kept any more
}

func (w *work) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	c := w.claimed
	if c.Lost >= maxLost || c.Lost > 0 && c.Shown {
		return w.close(ctx, Failed, Failure{Code: "server_error", Message: "The server that made this response stopped in the middle of it."})
	}
	p, err := w.authorize(ctx)
	lost, _ := errors.AsType[*gateway.Error](err)
	switch {
	case errors.Is(err, tenants.ErrRevoked):
		return w.close(ctx, Cancelled, Failure{})
	case lost != nil:
		return w.close(ctx, Failed, w.b.service.deps.Explain(lost))
	case err != nil:
		return w.release(ctx, retryPause, false)
	}
	guarded, release := w.b.deps.Keys.Guard(ctx, p)
	defer release()
	if err := w.prepare(guarded, p); err != nil {
		return w.unprepared(ctx, err)
	}
	beating := make(chan struct{})
	stop, stopped := context.WithCancel(guarded)
	go func() { defer close(beating); w.beat(stop, cancel) }()
	err = w.made.service.deps.Engine.Run(guarded, w.made.call, trial{w.answer, w})
	stopped()
	<-beating
	return w.finish(ctx, err)
}

// authorize asks again what was asked when the response was ordered. The error
// is tenants.ErrRevoked where the key is good for nothing any more, and an
// AccessLost where it is, but not for this. Which model the request names is for
// the exchange to find out; afterwards it is asked for here.
func (w *work) authorize(ctx context.Context) (*tenants.Principal, error) {
	p, err := w.b.deps.Keys.Principal(ctx, w.claimed.Tenant, w.claimed.Key)
	switch {
	case errors.Is(err, tenants.ErrBadKey), errors.Is(err, tenants.ErrSuspended):
		return nil, fmt.Errorf("%w: %w", tenants.ErrRevoked, err)
	case err != nil:
		return nil, err
	case p.Project != w.claimed.Project:
		return nil, fmt.Errorf("%w: it is another project's", tenants.ErrRevoked)
	case !p.Allows(tenants.ScopeResponses), w.made != nil && !p.MayUse(w.made.model):
		return nil, &gateway.Error{Cause: gateway.AccessLost}
	default:
		return p, nil
	}
}

// prepare makes the run of the request, as Prepare does, under the id that the
// caller knows and with the items that are stored.
func (w *work) prepare(ctx context.Context, p *tenants.Principal) error {
	c, s := w.claimed, w.b.service
	create, err := ParseCreate(c.Request)
	if err != nil {
		return err
	}
	from := Caller{Principal: p, RequestID: "req_" + newID(""), ClientRequestID: cmp.Or(c.ClientID, c.Response), ReceivedAt: s.deps.Now()}
	if w.made, err = s.prepare(ctx, from, create, c.Response, c.CreatedAt); err != nil {
		return err
	}
	if err := w.sameItems(ctx, create); err != nil {
		return err
	}
	w.made.call.Effect, w.made.call.Response = w.effect, c.Response
	w.answer = &answer{run: w.made, out: w, live: create.Stream}
	if !create.Stream {
		return nil
	}
	last, err := w.lastEvent(ctx)
	if err != nil {
		w.muted = true
	}
	w.made.stream.seq, w.next = last+1, last+1
	return nil
}

// sameItems gives the request's items the ids that they were stored under.
func (w *work) sameItems(ctx context.Context, create *Create) error {
	stored, err := w.b.deps.Runs.store.Input(ctx, w.claimed.Owner(), w.claimed.Response)
	if err != nil {
		return err
	}
	if own := len(stored) - len(create.Input); own >= 0 {
		create.Input = stored[own:]
	}
	return nil
}

// lastEvent is the number of the last event in the log; -1 when there is none.
func (w *work) lastEvent(ctx context.Context) (int, error) {
	last := -1
	for {
		entries, err := w.b.deps.Events.Read(ctx, logKey(w.claimed.Tenant, w.claimed.Response), last, 0)
		if err != nil || len(entries) == 0 {
			return last, err
		}
		last = entries[len(entries)-1].Last
	}
}

// unprepared ends what can't be run: a fault of the request's for good, one of
// ours after another try.
func (w *work) unprepared(ctx context.Context, err error) error {
	_, theirs := errors.AsType[*Problem](err)
	failure := w.b.service.deps.Explain(err)
	if theirs || failure.Kind == "invalid_request_error" || w.claimed.Lost+1 >= maxLost {
		return w.close(ctx, Failed, failure)
	}
	return errors.Join(w.release(ctx, retryPause, true), err)
}

// beat keeps the run, and asks again whether it may go on.
func (w *work) beat(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(w.b.deps.Beat)
	defer tick.Stop()
	heard := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		held, err := w.b.deps.Runs.Hold(ctx, w.claimed.RunID, w.runner, false)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && !held:
			cancel(errOver)
			return
		case err == nil:
			heard = time.Now()
		case time.Since(heard) > Silence-2*w.b.deps.Beat:
			cancel(errInterrupted) // before another takes it
			return
		}
		_, err = w.authorize(ctx)
		if _, lost := errors.AsType[*gateway.Error](err); lost || errors.Is(err, tenants.ErrRevoked) {
			cancel(err)
			return
		}
	}
}

// Begin shows the response as in progress: it has an endpoint now.
func (w *work) Begin(ctx context.Context, _ gateway.Head) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	held, err := w.b.deps.Runs.Started(ctx, w.claimed.RunID, w.runner, w.made.stream.object())
	if err == nil && !held {
		err = errOver
	}
	return err
}

// Send keeps events for those who follow the stream. Nobody sees output of
// which it isn't on record that somebody may have.
func (w *work) Send(ctx context.Context, p []byte) error {
	s := w.made.stream
	if !w.answer.live || w.muted {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	var err error
	if !w.shown && bytes.Contains(p, []byte("event: response.output_item.added\n")) {
		var held bool
		held, err = w.b.deps.Runs.Hold(ctx, w.claimed.RunID, w.runner, true)
		if err == nil && !held {
			return errOver
		}
		w.shown = true
	}
	if err == nil {
		err = w.b.write(ctx, w.claimed.RunID, p, w.next, s.seq-1, s.ended)
	}
	switch {
	case err == nil:
		w.next = s.seq
	case errors.Is(err, eventlog.ErrStale):
		return errOver
	default:
		w.muted = true
		w.b.log.WarnContext(ctx, "events of a background response not kept", "response", w.claimed.Response, "error", err)
		_ = w.b.deps.Events.Drop(ctx, logKey(w.claimed.Tenant, w.claimed.Response)) // half of them would mislead
	}
	return nil
}

// Fail has nothing to add: the events of a failure are sent.
func (w *work) Fail(context.Context, error) {}

// trial is an answer that may get another try: of a failure that leads to one
// nobody is told.
type trial struct {
	*answer

	work *work
}

// Fail ends the answer unless there will be another.
func (t trial) Fail(ctx context.Context, err error) {
	if e, ok := errors.AsType[*gateway.Error](err); ok && t.work.again(e) {
		return
	}
	t.answer.Fail(ctx, err)
}

// effect is Run.effect for a response that may get another try.
func (w *work) effect(ctx context.Context, failure *gateway.Error) (keep func(*pgx.Batch), err error) {
	if failure != nil && w.again(failure) {
		return nil, nil //nolint:nilnil // there is nothing to keep yet
	}
	return w.made.effect(ctx, failure)
}

// again reports that a failure is none of the response's: this process ends, or
// there is no capacity now.
func (w *work) again(e *gateway.Error) bool {
	w.made.mu.Lock()
	defer w.made.mu.Unlock()
	s := w.made.stream
	switch e.Cause {
	case gateway.ClientGone: // there is no client: it is errOver, errInterrupted, or the process ends
		return s.finish == ""
	case gateway.RateLimited, gateway.TooManyAtOnce, gateway.LimitsUnknown, gateway.MoneyUnknown, gateway.MoneyHeld,
		gateway.FlowFull, gateway.BandFull, gateway.PoolFull, gateway.Shed, gateway.QueueTimeout,
		gateway.NoEndpoint, gateway.ShuttingDown, gateway.ConnectFailed, gateway.UpstreamBusy:
		return s.state.status == "" && time.Since(w.claimed.CreatedAt) < maxWait
	case gateway.Evicted: // it gave way: what was made until then is taken back
		return (s.state.status == "" || !w.answer.live || !w.muted) && time.Since(w.claimed.CreatedAt) < maxWait
	default:
		return false
	}
}

// finish writes down how the run ended, unless that is written already.
func (w *work) finish(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*gateway.Error](err)
	switch {
	case !ok:
		e = &gateway.Error{Cause: gateway.Internal, Err: err}
	case !w.again(e):
	case errors.Is(e, errOver):
		return w.overtaken(ctx)
	case e.Cause == gateway.Evicted:
		return w.restart(ctx, e)
	case e.Cause != gateway.ClientGone:
		return w.release(ctx, min(max(e.RetryAfter, time.Second), longestWait), false)
	case w.shown || w.claimed.Lost+1 >= maxLost:
		e = &gateway.Error{Cause: gateway.ShuttingDown, Err: e}
	default:
		return w.release(ctx, 0, true)
	}
	return w.end(ctx, e)
}

// restart gives the run back as it was when it was ordered. Who has events of it
// is told so, and finds the new ones under higher numbers.
func (w *work) restart(ctx context.Context, e *gateway.Error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	s := w.made.newStream(w.made.model)
	s.anew(w.next)
	if w.answer.live && !w.muted && w.shown {
		entry, err := w.b.seal(ctx, w.claimed.RunID, s.out, s.seq-1)
		if err == nil {
			err = w.b.deps.Events.Restart(ctx, logKey(w.claimed.Tenant, w.claimed.Response), w.next, entry)
		}
		switch {
		case errors.Is(err, eventlog.ErrStale):
			return w.overtaken(ctx)
		case err != nil: // what was shown can't be taken back
			w.b.log.WarnContext(ctx, "events of a background response can't be taken back", "response", w.claimed.Response, "error", err)
			w.muted = true
			return w.end(ctx, e)
		}
		w.next = s.seq
	}
	after := min(max(e.RetryAfter, time.Second), longestWait)
	held, err := w.b.deps.Runs.Requeue(ctx, w.claimed.RunID, w.runner, after, s.object())
	switch {
	case err != nil:
		return err // it is found once this runner has been silent for long enough
	case !held:
		return w.overtaken(ctx)
	default:
		return &Again{After: after}
	}
}

// end stores a failure and then tells of it.
func (w *work) end(ctx context.Context, e *gateway.Error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	w.made.mu.Lock()
	defer w.made.mu.Unlock()
	s := w.made.stream
	if e.Cause == gateway.KeyRevoked {
		s.settle(Cancelled, "")
	} else {
		s.fail(w.b.service.deps.Explain(e))
	}
	if err := w.b.deps.Runs.End(ctx, w.made.record()); err != nil {
		return err
	}
	if !s.ended && w.answer.live {
		s.terminal()
		return w.answer.flush(ctx)
	}
	return nil
}

// overtaken ends the stream of a response that was ended elsewhere.
func (w *work) overtaken(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	state, err := w.b.deps.Runs.State(ctx, w.claimed.Owner(), w.claimed.Response)
	if err != nil || !Terminal(state.Status) || !w.answer.live || w.muted {
		return nil // it is gone, or another's: there is nothing to tell
	}
	w.made.mu.Lock()
	defer w.made.mu.Unlock()
	if s := w.made.stream; !s.ended {
		s.seq = w.next // what could not be written has no number
		s.terminalOf(state.Object)
		_ = w.b.write(ctx, w.claimed.RunID, s.out, w.next, s.seq-1, true) // those who follow find out by themselves
	}
	return nil
}

// release gives the run back.
func (w *work) release(ctx context.Context, after time.Duration, lost bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	held, err := w.b.deps.Runs.Release(ctx, w.claimed.RunID, w.runner, after, lost)
	switch {
	case err != nil:
		return err // it is found once this runner has been silent for long enough
	case !held:
		return nil
	default:
		return &Again{After: after}
	}
}

// close ends a response that is not run any more.
func (w *work) close(ctx context.Context, status string, f Failure) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	c := w.claimed
	object, err := sjson.SetBytes(c.Object, "status", status)
	if err == nil && status == Failed {
		object, err = sjson.SetBytes(object, "error", map[string]string{"code": f.Code, "message": f.Message})
	}
	if err != nil {
		return err
	}
	err = w.b.deps.Runs.End(ctx, &Record{
		ID: c.Response, Owner: c.Owner(), Key: c.Key, Root: c.Response, Turn: 1, Status: status, Background: true,
		CreatedAt: c.CreatedAt, Object: object,
	})
	if err != nil {
		return err
	}
	if last, err := w.lastEvent(ctx); err == nil && last >= 0 {
		s := &stream{seq: last + 1}
		s.terminalOf(object)
		_ = w.b.write(ctx, c.RunID, s.out, last+1, s.seq-1, true) // those who follow find out by themselves
	}
	return nil
}
