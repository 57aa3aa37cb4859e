package llmd

import (
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"weir/scheduler"
)

const (
	goodProbes = 2                // that bring a failed scheduler back
	mostProbes = 16               // that one needs which fails again and again
	flapsIn    = 30 * time.Second // of its return: it flaps
	maxSilence = 2                // probes in a row without an answer that mean failure
	maxStrikes = 3                // streams in a row that ended in no proper way
)

// member is one scheduler of a Standby and what is known of it. Its fields are
// held under the list's mu but for strikes.
type member struct {
	epp     EPP
	conn    *grpc.ClientConn
	strikes atomic.Int32 // streams in a row that ended in no proper way

	down   bool
	waits  bool   // it lives and says that it doesn't serve: a standby does
	fault  string // why it is down, or what its operator should know
	good   int    // probes in a row while it is down
	needed int    // of those to come back
	silent int    // probes in a row that nothing came back from
	rose   time.Time
	since  time.Time // of the last change
}

// finding is what a probe found.
type finding struct {
	ok     bool
	silent bool   // nothing came back in time
	waits  bool   // it answers that it doesn't serve
	fault  string // or a note, where it is ok
}

const noHealth = "it serves no grpc.health.v1 on its ext_proc port (--health-checking): only broken connections tell that it fails"

func findingOf(said healthpb.HealthCheckResponse_ServingStatus, err error) finding {
	switch code := status.Code(err); {
	case err == nil && said == healthpb.HealthCheckResponse_SERVING:
		return finding{ok: true}
	case err == nil:
		return finding{waits: true, fault: "it says that it doesn't serve: " + said.String()}
	case code == codes.Unimplemented:
		return finding{ok: true, fault: noHealth}
	case code == codes.DeadlineExceeded:
		return finding{silent: true, fault: "it doesn't answer"}
	default:
		return finding{fault: status.Convert(err).Message()}
	}
}

// best is the index of the one to use: the first that isn't down, else the
// first that begins to answer again; -1 when there is none.
func best(members []*member) int {
	coming := -1
	for i, m := range members {
		switch {
		case !m.down:
			return i
		case m.good > 0 && coming < 0:
			coming = i
		}
	}
	return coming
}

// probed takes in a probe.
func (m *member) probed(f finding, now time.Time) {
	m.waits = f.waits
	if !f.ok {
		if f.silent {
			if m.silent++; m.silent < maxSilence && !m.down {
				return
			}
		}
		m.fall(f.fault, now)
		return
	}
	m.silent = 0
	if !m.down {
		m.fault = f.fault
		return
	}
	if m.good++; m.good >= m.needed {
		m.down, m.fault, m.rose, m.since = false, f.fault, now, now
		m.strikes.Store(0)
	}
}

// broke takes in that a stream failed, and reports whether the member is out
// for it: at once where it can't be reached or is about to stop, and where it
// answers in no proper way after some of these.
func (m *member) broke(err error, now time.Time) bool {
	refusal, refused := errors.AsType[*scheduler.Refusal](err)
	switch code := status.Code(err); {
	case refused && refusal.Reason == scheduler.ShuttingDown, code == codes.Unavailable:
	case code == codes.Canceled:
		return false
	default:
		if m.strikes.Add(1) < maxStrikes {
			return false
		}
	}
	fresh := !m.down
	m.waits = false
	m.fall(err.Error(), now)
	return fresh
}

// fall puts the member out. One that was hardly back needs longer next time.
func (m *member) fall(fault string, now time.Time) {
	if !m.down {
		m.since = now
		if !m.rose.IsZero() && now.Sub(m.rose) < flapsIn {
			m.needed = min(2*m.needed, mostProbes)
		} else {
			m.needed = goodProbes
		}
	}
	m.down, m.good, m.fault = true, 0, fault
}
