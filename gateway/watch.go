package gateway

import (
	"context"
	"sync"
	"time"
)

// watch ends an attempt that outlives a time limit, and wakes what keeps a
// silent stream alive. It has one timer, which it looks after lazily: to begin
// and to end a wait for the engine costs no timer call, as long as the timer
// fires soon enough anyway.
type watch struct {
	cancel context.CancelCauseFunc
	total  time.Time                     // when the exchange has to be over
	idle   func(now time.Time) time.Time // called when due; returns when it is due again

	mu      sync.Mutex
	timer   *time.Timer
	fires   time.Time // when the timer does
	due     time.Time // of the present wait; zero when there is none
	cause   Cause     // what the present wait ends with
	idleDue time.Time
	stopped bool
	calls   sync.WaitGroup // of idle: at most one
}

// newWatch begins to watch. Idle is first due at idleDue; nil is never.
func newWatch(cancel context.CancelCauseFunc, total time.Time, idle func(time.Time) time.Time, idleDue time.Time) *watch {
	w := &watch{cancel: cancel, total: total, idle: idle, idleDue: idleDue}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fires = w.next()
	w.timer = time.AfterFunc(time.Until(w.fires), w.tick)
	return w
}

// wait says that the engine has to do something within limit, else the attempt
// ends with the cause.
func (w *watch) wait(c Cause, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cause, w.due = c, time.Now().Add(limit)
	if w.due.Before(w.fires) && !w.stopped {
		w.fires = w.due
		w.timer.Reset(limit)
	}
}

// rest says that the engine did it: what comes now is not its time.
func (w *watch) rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = time.Time{}
}

// stop ends the watch. Once it returns, nothing is called any more.
func (w *watch) stop() {
	w.mu.Lock()
	w.stopped = true
	w.timer.Stop()
	w.mu.Unlock()
	w.calls.Wait()
}

func (w *watch) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case w.stopped:
		return
	case !now.Before(w.total):
		w.cancel(&Error{Cause: TotalLimit})
		return
	case !w.due.IsZero() && !now.Before(w.due):
		w.cancel(&Error{Cause: w.cause})
		return
	case w.idle != nil && !now.Before(w.idleDue):
		w.callIdle(now)
		return
	}
	w.rearm()
}

// callIdle holds mu, but not while it calls: idle may have to wait for a caller
// who reads slowly, and the time limits hold meanwhile.
func (w *watch) callIdle(now time.Time) {
	w.idleDue = w.total // until it returns, not again
	w.rearm()
	w.calls.Add(1)
	w.mu.Unlock()
	due := w.idle(now)
	w.mu.Lock()
	w.calls.Done()
	w.idleDue = due
	if !w.stopped && due.Before(w.fires) {
		w.rearm()
	}
}

// rearm holds mu.
func (w *watch) rearm() {
	w.fires = w.next()
	w.timer.Reset(time.Until(w.fires))
}

// next is when the timer has to fire.
func (w *watch) next() time.Time {
	at := w.total
	if !w.due.IsZero() && w.due.Before(at) {
		at = w.due
	}
	if w.idle != nil && w.idleDue.Before(at) {
		at = w.idleDue
	}
	return at
}
