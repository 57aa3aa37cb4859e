package llmd

import (
	"errors"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/scheduler"
)

// Peer is the process that schedules now: an Endpoint Picker, or a `weir
// scheduler`.
type Peer interface {
	Conn() grpc.ClientConnInterface
	Name() string
	// Report tells how an exchange's stream went that Conn carried: nil where
	// the peer answered, whatever its answer, else why it didn't. An end that
	// the caller or the gateway wanted is no failure.
	Report(err error)
}

// ErrNoScheduler is why nobody schedules: none of a pool's schedulers answers.
var ErrNoScheduler = errors.New("no scheduler of the pool answers")

// Elsewhere reports whether another scheduler of the same pool may be asked
// after one that ended with err, a refusal of Schedule: where it broke off, is
// about to stop, or knows no endpoint. One that is full has decided, and what
// it decided holds.
func Elsewhere(err error) bool {
	refusal, ok := errors.AsType[*scheduler.Refusal](err)
	if !ok || errors.Is(err, ErrNoScheduler) {
		return false
	}
	switch refusal.Reason {
	case scheduler.ShuttingDown, scheduler.NoEndpoints:
		return true
	case scheduler.Cancelled:
		return false
	default:
		return refusal.Err != nil && unreachable(refusal.Err)
	}
}

// unreachable reports whether a stream ended because of the way to the peer.
func unreachable(err error) bool {
	s, ok := status.FromError(err)
	return ok && slices.Contains([]codes.Code{codes.Unavailable, codes.Canceled}, s.Code())
}
