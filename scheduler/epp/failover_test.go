package epp_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/migrations/pgtest"
	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/llmd"
	"weir/scheduler/primary"
)

const leaseTTL = time.Second

// machine is one scheduler with its lease, which can die.
type machine struct {
	*epp.Server

	near    *scheduler.Embedded
	lease   *primary.Lease
	address string
	stop    func() // and waits
	dead    atomic.Bool
	db      primary.DB

	mu    sync.Mutex
	conns []net.Conn
}

func startMachine(t *testing.T, db *pgtest.DB, places int) *machine {
	t.Helper()
	m := &machine{near: scheduler.New(scheduler.Config{}, nil), db: db.Worker}
	t.Cleanup(m.near.Close)
	m.near.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test", MaxConcurrency: places}})
	m.near.SetHealth("a", scheduler.Healthy)
	m.lease = primary.New(slog.New(slog.DiscardHandler), m, primary.Config{TTL: leaseTTL, Changed: func(held bool) { m.Follow(held) }})
	m.Server = epp.New(slog.New(slog.DiscardHandler), onePool{of: m.near}, epp.NewMetrics(nil), epp.Config{Primary: m.lease.Held})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = l.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = m.lease.Run(ctx) })
	running.Go(func() { _ = m.Serve(ctx, mortal{l, m}, epp.Serving{Grace: 20 * time.Second}) })
	m.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(m.stop)
	return m
}

// kill takes the machine off the network: nobody is told anything any more.
func (m *machine) kill() {
	m.dead.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		_ = c.Close()
	}
}

var errDead = errors.New("the machine is off the network")

type deadRow struct{}

func (deadRow) Scan(...any) error { return errDead }

// QueryRow asks the database while the machine lives.
func (m *machine) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if m.dead.Load() {
		return deadRow{}
	}
	return m.db.QueryRow(ctx, sql, args...)
}

// Exec does too.
func (m *machine) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if m.dead.Load() {
		return pgconn.CommandTag{}, errDead
	}
	return m.db.Exec(ctx, sql, args...)
}

// mortal is a machine's listener.
type mortal struct {
	net.Listener

	m *machine
}

func (l mortal) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.m.mu.Lock()
		l.m.conns = append(l.m.conns, c)
		l.m.mu.Unlock()
		if !l.m.dead.Load() {
			return c, nil
		}
		_ = c.Close()
	}
}

// gatewayOf is a client of a list of machines.
func gatewayOf(t *testing.T, machines ...*machine) *llmd.Client {
	t.Helper()
	var list llmd.StandbyConfig
	list.Interval = 50 * time.Millisecond
	for _, m := range machines {
		list.EPPs = append(list.EPPs, llmd.EPP{Address: m.address})
	}
	standby, err := llmd.NewStandby(slog.New(slog.DiscardHandler), list)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var probing sync.WaitGroup
	probing.Go(func() { _ = standby.Run(ctx) })
	c := llmd.New(slog.New(slog.DiscardHandler), llmd.Config{Pool: "main", Own: true, Picker: standby.Pick, Allowed: known, Patience: 20 * time.Second})
	t.Cleanup(func() {
		c.Close()
		c.Wait()
		cancel()
		probing.Wait()
		standby.Close()
	})
	return c
}

func TestThePrimarysEndLosesNothingUnderLoad(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*machine){
		"it is restarted": func(m *machine) { go m.stop() },
		"it dies":         (*machine).kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const places, waiting = 4, 12
			db := pgtest.New(t)
			first := startMachine(t, db, places)
			eventually(t, "the first is the primary", first.lease.Held)
			second := startMachine(t, db, places)
			gateways := []*llmd.Client{gatewayOf(t, first, second), gatewayOf(t, first, second)}

			var running []scheduler.Lease
			for i := range places {
				running = append(running, granted(t, gateways[i%2], asked("running/"+strconv.Itoa(i), "t", 1)))
			}
			var all sync.WaitGroup
			var admitted, at atomic.Int64
			for i := range waiting {
				all.Go(func() {
					l, err := gateways[i%2].Schedule(t.Context(), asked("waiting/"+strconv.Itoa(i), "t", 1))
					if err != nil {
						t.Errorf("a request that waited was refused: %v", err)
						return
					}
					admitted.Add(1)
					at.CompareAndSwap(0, time.Now().UnixNano())
					l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 1, OutputTokens: 1})
				})
			}
			eventually(t, "all wait", func() bool { return first.near.State().Queued == waiting })

			ended := time.Now()
			end(first)
			all.Wait()
			if n := admitted.Load(); n != waiting {
				t.Errorf("%d of %d that waited were admitted again", n, waiting)
			}
			if took := time.Unix(0, at.Load()).Sub(ended); took > leaseTTL+4*time.Second {
				t.Errorf("the first was admitted again after %v, with a lease of %v", took, leaseTTL)
			}
			if !second.lease.Held() || first.lease.Held() {
				t.Errorf("primary: first %v, second %v", first.lease.Held(), second.lease.Held())
			}
			for i, l := range running {
				select {
				case <-l.Evicted():
					t.Errorf("stream %d was cut by the end of the scheduler", i)
				default:
				}
				l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
				l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 1, OutputTokens: 1})
			}
			eventually(t, "the first counts no running request", func() bool { return first.near.State().Live == 0 })
			first.stop()
		})
	}
}

// A database that was restored, or a clock that was set back under it, may leave
// a primary that believes in a lease which another has had since.
func TestADecisionOfAnEarlierPrimaryDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var peers [2]llmd.Peer
		var pools [2]*scheduler.Embedded
		terms := [2]string{"default/1", "default/2"}
		for i, term := range terms {
			pools[i] = scheduler.New(scheduler.Config{}, nil)
			t.Cleanup(pools[i].Close)
			remote{near: pools[i]}.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test", MaxConcurrency: 9}})
			dial := inMemory(t, pools[i], epp.Config{Epoch: func() string { return term }})
			peers[i], _ = llmd.Single(dial(), term)()
		}
		use := 0
		gateway := ask(t, func() (llmd.Peer, error) { return peers[use], nil })
		for i := range peers { // the first, and then the one that follows it
			use = i
			granted(t, gateway, asked(terms[i], "t", 1)).End(scheduler.Outcome{})
		}
		use = 0
		l, err := gateway.Schedule(t.Context(), asked("late", "t", 1))
		if refusal, ok := errors.AsType[*scheduler.Refusal](err); l != nil || !ok || refusal.Reason != scheduler.NoEndpoints {
			t.Errorf("the earlier primary gave %v, %v", l, err)
		}
		rest()
		if live := pools[0].State().Live; live != 0 {
			t.Errorf("%d leases are left where nothing was used", live)
		}
		synctest.Sleep(time.Minute) // in which the later one decided nothing: Postgres fell back
		granted(t, gateway, asked("again", "t", 1)).End(scheduler.Outcome{})
	})
}

func granted(t *testing.T, c *llmd.Client, r scheduler.Request) scheduler.Lease {
	t.Helper()
	l, err := c.Schedule(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
