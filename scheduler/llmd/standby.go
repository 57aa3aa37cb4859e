package llmd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// ErrNoScheduler is why nobody schedules: none of a pool's schedulers answers.
var ErrNoScheduler = errors.New("no scheduler of the pool answers")

// Undecided reports whether a request that Schedule refused with err met no
// scheduler that decided: none answers, or the one that was asked went away.
func Undecided(err error) bool { return errors.Is(err, ErrNoScheduler) || isLost(err) }

// StandbyConfig sets a Standby. Zero fields but EPPs take the default that is
// named with them.
type StandbyConfig struct {
	EPPs     []EPP         // in the order in which they are wanted; at least one
	Interval time.Duration // between two probes of each (1 s), give or take a fifth
	Timeout  time.Duration // of a probe (1 s)
	Connect  time.Duration // of a connection (250 ms)
}

// EPP is one process that can schedule.
type EPP struct {
	Address string      // host:port
	TLS     *tls.Config // nil: plaintext
}

// Standby is an ordered list of schedulers of which one is used: the first one
// that answers. One that fails is left at once, and taken again after two good
// probes. It is safe for concurrent use.
//
// Each process judges for itself. Two of them can disagree for as long as one
// of them can't reach what the other can; then each scheduler sees a part of
// the load, and together they let up to twice as much run. Only schedulers that
// elect a leader, and whose others say that they don't serve, exclude that.
type Standby struct {
	log  *slog.Logger
	cfg  StandbyConfig
	kick chan struct{} // one token: somebody failed, so probe now

	mu        sync.Mutex
	members   []*member
	using     int // index of the one that was picked last; -1: none yet
	failovers uint64
	closed    bool
}

// NewStandby makes the list. Nothing is connected yet.
func NewStandby(log *slog.Logger, c StandbyConfig) (*Standby, error) {
	c.Interval = cmp.Or(c.Interval, time.Second)
	c.Timeout = cmp.Or(c.Timeout, time.Second)
	c.Connect = cmp.Or(c.Connect, 250*time.Millisecond)
	s := &Standby{log: log, cfg: c, kick: make(chan struct{}, 1), using: -1}
	for _, e := range c.EPPs {
		conn, err := dial(e, c.Connect)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.members = append(s.members, &member{epp: e, conn: conn, needed: goodProbes})
	}
	return s, nil
}

// Pick returns the scheduler to use now. The error is ErrNoScheduler.
func (s *Standby) Pick() (Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := best(s.members)
	if i < 0 || s.closed {
		return nil, ErrNoScheduler
	}
	m := s.members[i]
	if s.using != i {
		if s.using >= 0 {
			s.failovers++
			was := s.members[s.using]
			s.log.Warn("another scheduler is used now", "from", was.epp.Address, "to", m.epp.Address, "fault", was.fault)
		}
		s.using = i
	}
	return &picked{list: s, member: m, conn: m.conn}, nil
}

// Run probes all of them until ctx ends. It returns nil.
func (s *Standby) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-s.kick:
		}
		s.Look(ctx)
		timer.Reset(jitter(s.cfg.Interval))
	}
}

// Look probes all of them once, at the same time.
func (s *Standby) Look(ctx context.Context) {
	s.mu.Lock()
	members := s.members
	conns := make([]*grpc.ClientConn, len(members))
	for i, m := range members {
		conns[i] = m.conn
	}
	s.mu.Unlock()
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() {
			found := s.probe(ctx, conns[i])
			if ctx.Err() == nil {
				s.judge(m, conns[i], found)
			}
		})
	}
	all.Wait()
}

// probe asks one how it is. Its port for health may be another one, so it is
// asked where it will be asked for more. A connection that waits for its next
// try is not hurried: grpc's ResetConnectBackoff reads a map that others write,
// which ends the process, and the wait is a second at most.
func (s *Standby) probe(ctx context.Context, conn *grpc.ClientConn) finding {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return findingOf(answer.GetStatus(), err)
}

// judge takes in what a probe found. A connection over which nothing comes back
// is given up, and with it what waits on it: those requests try elsewhere.
func (s *Standby) judge(m *member, conn *grpc.ClientConn, found finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.conn != conn || s.closed {
		return // of a connection that was given up meanwhile
	}
	before := m.down
	m.probed(found, time.Now())
	if m.down != before {
		s.log.Warn("scheduler judged", "epp", m.epp.Address, "up", !m.down, "fault", m.fault)
	}
	if m.down && found.silent {
		s.renew(m)
	}
}

// renew gives the member a fresh connection. It holds mu.
func (s *Standby) renew(m *member) {
	fresh, err := dial(m.epp, s.cfg.Connect)
	if err != nil { // never: the same worked before
		return
	}
	_ = m.conn.Close() // ends its streams, which is all that it can do
	m.conn = fresh
}

// failed takes in that a stream broke.
func (s *Standby) failed(p *picked, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.member.conn != p.conn || !p.member.broke(err, time.Now()) {
		return
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Close ends all connections, and the streams on them. Pick then has nobody.
func (s *Standby) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, m := range s.members {
		_ = m.conn.Close()
	}
}

// picked is the Peer of one exchange.
type picked struct {
	list   *Standby
	member *member
	conn   *grpc.ClientConn
}

func (p *picked) Conn() grpc.ClientConnInterface { return p.conn }
func (p *picked) Name() string                   { return p.member.epp.Address }

func (p *picked) Report(err error) {
	if err == nil {
		p.member.strikes.Store(0)
		return
	}
	p.list.failed(p, err)
}

// jitter spreads d by a fifth to either side, so that replicas don't probe in
// step.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.4*float64(d)) //nolint:gosec // nothing secret
}
