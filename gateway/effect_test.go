package gateway

import (
	"testing"
	"time"

	"weir/scheduler"
	"weir/tenants"
)

// allCauses is every cause with what it means. A cause without a row fails
// TestEveryCauseHasARow.
func allCauses() map[Cause]struct {
	effect Effect
	result scheduler.Result
} {
	type row = struct {
		effect Effect
		result scheduler.Result
	}
	fault := row{Effect{Retryable: true, Blames: true}, scheduler.EndpointFault}
	left := row{Effect{Billable: true}, scheduler.Abandoned}
	ours := row{Effect{}, scheduler.Abandoned}
	callers := row{Effect{}, scheduler.CallerFault}
	return map[Cause]row{
		Success:          {Effect{Billable: true}, scheduler.Completed},
		ModelNotFound:    ours,
		WrongOperation:   ours,
		NotCounted:       ours,
		PlaceForbidden:   ours,
		SuspectRequest:   ours,
		RateLimited:      ours,
		TokenRateLimited: ours,
		TooManyAtOnce:    ours,
		LimitsUnknown:    ours,
		FlowFull:         ours,
		BandFull:         ours,
		PoolFull:         ours,
		Shed:             ours,
		QueueTimeout:     ours,
		NoEndpoint:       ours,
		ShuttingDown:     ours,
		ConnectFailed:    fault,
		UpstreamReset:    fault,
		UpstreamStatus:   fault,
		UpstreamInvalid:  fault,
		UpstreamBusy:     {Effect{Retryable: true}, scheduler.Overloaded},
		UpstreamRefused:  callers,
		ContextTooLong:   callers,
		FirstByteLimit:   {Effect{Blames: true}, scheduler.EndpointFault},
		IdleLimit:        {Effect{Blames: true, Billable: true}, scheduler.EndpointFault},
		UpstreamDied:     {Effect{Blames: true, Billable: true}, scheduler.EndpointFault},
		TotalLimit:       left,
		KeyRevoked:       left,
		AccessLost:       left,
		ClientGone:       left,
		Evicted:          {Effect{Retryable: true}, scheduler.Abandoned},
		StoreDown:        ours,
		Internal:         ours,
	}
}

func TestEveryCauseHasItsEffect(t *testing.T) {
	t.Parallel()
	for cause, want := range allCauses() {
		if got := cause.Effect(); got != want.effect {
			t.Errorf("%s: effect %+v, want %+v", cause, got, want.effect)
		}
		if got := cause.result(); got != want.result {
			t.Errorf("%s: result %v, want %v", cause, got, want.result)
		}
	}
	if got := Cause("new").Effect(); got != (Effect{}) {
		t.Errorf("an unknown cause has effect %+v", got)
	}
}

func TestRefusalsOfTheSchedulerHaveTheirCauses(t *testing.T) {
	t.Parallel()
	for reason, want := range map[scheduler.Reason]Cause{
		scheduler.FlowFull: FlowFull, scheduler.BandFull: BandFull, scheduler.PoolFull: PoolFull, scheduler.ShedLoad: Shed,
		scheduler.QueueTimeout: QueueTimeout, scheduler.NoEndpoints: NoEndpoint, scheduler.ShuttingDown: ShuttingDown,
		scheduler.Cancelled: ClientGone, scheduler.Internal: Internal, "new": Internal,
	} {
		if got := refusalCause(reason); got != want {
			t.Errorf("%s: %s, want %s", reason, got, want)
		}
	}
}

func TestRetryBudgetIsATenthOfWhatWasCompleted(t *testing.T) {
	t.Parallel()
	b := newRetryBudget()
	spend := func() (n int) {
		for b.spend("p") {
			n++
		}
		return n
	}
	if n := spend(); n != 3 {
		t.Errorf("%d retries to begin with, want 3", n)
	}
	for range 99 {
		b.earn("p")
	}
	if n := spend(); n != 9 {
		t.Errorf("%d retries after 99 exchanges, want 9", n)
	}
	b.earn("p")
	if !b.spend("p") {
		t.Error("the hundredth exchange earned nothing")
	}
	for range 100_000 {
		b.earn("p")
	}
	if n := spend(); n != 50 {
		t.Errorf("%d retries saved up, want 50", n)
	}
	if !b.spend("another") {
		t.Error("pools share one budget")
	}
}

func TestSuspectsAreBoundedAndForgotten(t *testing.T) {
	t.Parallel()
	s, now := newSuspects(time.Minute), time.Now()
	body := func(i int) []byte { return []byte{byte(i), byte(i >> 8), byte(i >> 16)} }
	has := func(i int, at time.Time) bool {
		_, ok := s.has("ten_a", "m", body(i), at)
		return ok
	}
	for i := range 2 * maxSuspects {
		s.add("ten_a", "m", body(i), now.Add(time.Duration(i)))
	}
	if n := len(s.until); n != maxSuspects {
		t.Errorf("%d suspects, want %d", n, maxSuspects)
	}
	last := 2*maxSuspects - 1
	if has(0, now) || !has(last, now) {
		t.Error("the newest suspects should be the ones that stay")
	}
	if _, ok := s.has(tenants.ID("ten_b"), "m", body(last), now); ok {
		t.Error("another tenant is suspected")
	}
	if has(last, now.Add(2*time.Minute)) || s.some.Load() {
		t.Error("a suspicion should end")
	}
}

func TestCleanedMessagesAreShort(t *testing.T) {
	t.Parallel()
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = 'x'
	}
	if n := len(clean(string(long))); n > maxMessage+3 {
		t.Errorf("%d bytes", n)
	}
}
