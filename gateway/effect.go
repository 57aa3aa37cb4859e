package gateway

import "weir/scheduler"

// Effect returns the cause's row of the table below. A cause that is not in it
// is a defect of ours: nobody is blamed and nobody pays.
//
// Three judgements hide in the table. Silence for the whole time limit of a
// model blames the endpoint (a hung accelerator still answers its health
// check), but is not tried again: the caller has waited long enough. A busy
// endpoint lives, so it is avoided without blame. And the tenant pays where it
// was given output, whoever broke off; never for an answer of which it saw
// nothing, nor for one that we took back for somebody else.
func (c Cause) Effect() Effect {
	switch c {
	case Success:
		return Effect{Billable: true}
	case ConnectFailed, UpstreamReset, UpstreamStatus, UpstreamInvalid:
		return Effect{Retryable: true, Blames: true}
	case UpstreamBusy, Evicted:
		return Effect{Retryable: true}
	case FirstByteLimit:
		return Effect{Blames: true}
	case IdleLimit, UpstreamDied:
		return Effect{Blames: true, Billable: true}
	case TotalLimit, KeyRevoked, AccessLost, ClientGone, BudgetExhausted:
		return Effect{Billable: true}
	case ModelNotFound, WrongOperation, NotCounted, PlaceForbidden, SuspectRequest,
		Unpriced, InsufficientQuota, MoneyHeld, MoneyUnknown,
		RateLimited, TokenRateLimited, TooManyAtOnce, LimitsUnknown,
		FlowFull, BandFull, PoolFull, Shed, QueueTimeout, NoEndpoint, ShuttingDown,
		UpstreamRefused, ContextTooLong, StoreDown, Internal:
		return Effect{}
	default:
		return Effect{}
	}
}

// result is what the cause tells the scheduler of the endpoint.
func (c Cause) result() scheduler.Result {
	switch {
	case c == Success:
		return scheduler.Completed
	case c == UpstreamBusy:
		return scheduler.Overloaded
	case c == UpstreamRefused || c == ContextTooLong:
		return scheduler.CallerFault
	case c.Effect().Blames:
		return scheduler.EndpointFault
	default:
		return scheduler.Abandoned
	}
}

// reached reports whether the endpoint took the request all the same, so that
// another one that was to compute its prompt may be what failed.
func (c Cause) reached() bool {
	return c == UpstreamStatus || c == UpstreamBusy || c == FirstByteLimit
}

// refusalCause maps a scheduler's reason. Cancelled is not in it: why the
// caller's context ended is known from the context.
func refusalCause(r scheduler.Reason) Cause {
	switch r {
	case scheduler.FlowFull:
		return FlowFull
	case scheduler.BandFull:
		return BandFull
	case scheduler.PoolFull:
		return PoolFull
	case scheduler.ShedLoad:
		return Shed
	case scheduler.QueueTimeout:
		return QueueTimeout
	case scheduler.NoEndpoints:
		return NoEndpoint
	case scheduler.ShuttingDown:
		return ShuttingDown
	case scheduler.Cancelled:
		return ClientGone
	default:
		return Internal
	}
}
