package billing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations/pgtest"
)

// line is a wire to Postgres that can be cut.
type line struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
	deaf  func(fromClient []byte) bool // true: deliver this, lose the answer and cut
}

func newLine(t *testing.T, workerURL string) (l *line, worker *pgxpool.Pool) {
	t.Helper()
	u, err := url.Parse(workerURL)
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = &line{listener: listener, target: u.Host}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { l.carry(c) })
		}
	})
	u.Host = listener.Addr().String()
	worker, err = pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		worker.Close()
		_ = listener.Close()
		l.down()
		wg.Wait()
	})
	return l, worker
}

func (l *line) carry(client net.Conn) {
	server, err := net.Dial("tcp", l.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l.mu.Lock()
	if l.cut {
		l.mu.Unlock()
		_, _ = client.Close(), server.Close()
		return
	}
	l.conns = append(l.conns, client, server)
	l.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil {
			break
		}
		l.mu.Lock()
		deaf := l.deaf != nil && l.deaf(buf[:n])
		l.mu.Unlock()
		if deaf {
			_ = client.Close()
		}
		if _, err := server.Write(buf[:n]); err != nil || deaf {
			break
		}
	}
	_ = server.(*net.TCPConn).CloseWrite() // what was sent is still read there
	wg.Wait()
	_, _ = server.Close(), client.Close()
}

// down cuts every connection and refuses new ones.
func (l *line) down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func (l *line) up() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestWhilePostgresIsAwayReceiptsAreSpooledAndLaterStoredOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, effectTable)
	wire, worker := newLine(t, db.WorkerURL)
	s := testSettler(t, worker, testSpool(t, t.TempDir(), 0), SettleConfig{Retry: 10 * time.Millisecond})
	stop := background(t, s)

	if err := s.Settle(t.Context(), testReceipt("req_before"), nil); err != nil {
		t.Fatal(err)
	}
	wire.down()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if err := s.Settle(t.Context(), testReceipt(fmt.Sprintf("req_%d", i)), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !s.Away() || s.Spooled() == 0 {
		t.Fatalf("away %v, %d bytes are spooled", s.Away(), s.Spooled())
	}
	if err := s.Settle(t.Context(), testReceipt("req_effect"), note("req_effect")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("an effect during an outage: got %v, want ErrUnavailable", err)
	}
	// A caller that tries again must not make a second receipt.
	if err := s.Settle(t.Context(), testReceipt("req_before"), nil); err != nil {
		t.Error(err)
	}

	wire.up()
	eventually(t, "the spool is replayed", func() bool { return !s.Away() && s.Spooled() == 0 })
	if n := count(t, db, "true"); n != 101 {
		t.Errorf("%d receipts, want 101", n)
	}
	if err := s.Settle(t.Context(), testReceipt("req_effect"), note("req_effect")); err != nil {
		t.Error(err)
	}
	if n := notes(t, db, "req_effect"); n != 1 {
		t.Errorf("the effect was applied %d times", n)
	}
	stop()
	if err := s.Settle(t.Context(), testReceipt("req_after"), nil); err != nil {
		t.Errorf("settling after Run has ended: %v", err)
	}
}

func TestWithoutASpoolAnOutageIsAnError(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wire, worker := newLine(t, db.WorkerURL)
	wire.down()
	s := testSettler(t, worker, nil, SettleConfig{})
	for range 2 { // the one who finds out, and those after
		if err := s.Settle(t.Context(), testReceipt("req_1"), nil); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	}
}

func TestAFullSpoolIsAnError(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wire, worker := newLine(t, db.WorkerURL)
	wire.down()
	s := testSettler(t, worker, testSpool(t, t.TempDir(), 4096), SettleConfig{})
	var stored int
	var err error
	for i := range 100 {
		if err = s.Settle(t.Context(), testReceipt(fmt.Sprintf("req_%d", i)), nil); err != nil {
			break
		}
		stored++
	}
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrSpoolFull) {
		t.Errorf("got %v, want ErrUnavailable and ErrSpoolFull", err)
	}
	if stored == 0 || s.Spooled() > 4096 {
		t.Errorf("%d receipts in %d bytes", stored, s.Spooled())
	}
}

func TestAStalledPostgresDelaysACallerByOneTimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, testSpool(t, t.TempDir(), 0), SettleConfig{Timeout: 300 * time.Millisecond})
	if err := s.Settle(t.Context(), testReceipt("req_warm"), nil); err != nil {
		t.Fatal(err)
	}
	conn := db.Admin(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it holds a lock, nothing else
	if _, err := tx.Exec(t.Context(), `LOCK TABLE receipt_ids`); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := s.Settle(t.Context(), testReceipt("req_1"), nil); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if s.Spooled() == 0 {
		t.Error("the receipt is not spooled")
	}
}

func TestABackendKilledAtAnyMomentLosesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, effectTable)
	s := testSettler(t, db.Worker, testSpool(t, t.TempDir(), 0), SettleConfig{Retry: 10 * time.Millisecond})
	background(t, s)
	// Callers go on until enough backends were killed under them.
	const callers, each, atMost, enough = 20, 40, 4000, 10
	var stored, effectful, kills atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := 0; i < each || i < atMost && kills.Load() < enough && !t.Failed(); i++ {
				id := fmt.Sprintf("req_%d_%d", c, i)
				var effect func(*pgx.Batch)
				if c%2 == 0 {
					effect = note(id)
				}
				eventually(t, id+" is stored", func() bool {
					err := s.Settle(t.Context(), testReceipt(id), effect)
					if err != nil && !errors.Is(err, ErrUnavailable) {
						t.Errorf("%s: %v", id, err)
					}
					return err == nil
				})
				stored.Add(1)
				if effect != nil {
					effectful.Add(1)
				}
			}
		})
	}
	admin := db.Admin(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	for running := true; running && kills.Load() < 4*enough; {
		select {
		case <-ended:
			running = false
			continue
		case <-tick.C:
		}
		var n int64
		err := admin.QueryRow(t.Context(), `
			SELECT count(pg_terminate_backend(pid))
			FROM pg_stat_activity
			WHERE usename = 'weir_worker' AND datname = current_database() AND state <> 'idle'`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		kills.Add(n)
	}
	<-ended
	eventually(t, "the spool is replayed", func() bool { return s.Spooled() == 0 })
	if n := count(t, db, "true"); int64(n) != stored.Load() {
		t.Errorf("%d receipts, want %d", n, stored.Load())
	}
	var twice, effects int64
	err := admin.QueryRow(t.Context(), `
		SELECT count(*) FILTER (WHERE n > 1), count(*)
		FROM (SELECT count(*) AS n FROM effects GROUP BY request_id) AS e`).Scan(&twice, &effects)
	if err != nil {
		t.Fatal(err)
	}
	if twice != 0 || effects != effectful.Load() {
		t.Errorf("%d effects were applied twice, %d at all, want 0 and %d", twice, effects, effectful.Load())
	}
	if kills.Load() == 0 {
		t.Error("no backend was killed: nothing is proven")
	}
}

func TestACommitWhoseAnswerIsLostIsStoredOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, effectTable)
	wire, worker := newLine(t, db.WorkerURL)
	s := testSettler(t, worker, nil, SettleConfig{})
	if err := s.Settle(t.Context(), testReceipt("req_warm"), note("req_warm")); err != nil {
		t.Fatal(err)
	}
	var dropped atomic.Bool
	wire.mu.Lock()
	// The second round trip of a settle with an effect carries its COMMIT.
	wire.deaf = func(p []byte) bool {
		return bytes.Contains(p, []byte("req_1-note")) && dropped.CompareAndSwap(false, true)
	}
	wire.mu.Unlock()
	effect := func(b *pgx.Batch) { b.Queue(`SELECT test_effect($1)`, "req_1-note") }
	if err := s.Settle(t.Context(), testReceipt("req_1"), effect); err != nil {
		t.Fatal(err)
	}
	if !dropped.Load() {
		t.Fatal("the answer was not lost: nothing is proven")
	}
	if r, e := count(t, db, "request_id = 'req_1'"), notes(t, db, "req_1-note"); r != 1 || e != 1 {
		t.Errorf("%d receipts and %d effects, want one of each", r, e)
	}
}

func TestTheSpoolOfAnEarlierProcessIsReplayedAtStart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	dir := t.TempDir()
	for range 2 { // the second time everything is stored already
		before, err := OpenSpool(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 251 {
			if err := before.Append([]Receipt{testReceipt(fmt.Sprintf("req_%d", i))}); err != nil {
				t.Fatal(err)
			}
		}
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}
		spool, err := OpenSpool(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := testSettler(t, db.Worker, spool, SettleConfig{Retry: 10 * time.Millisecond})
		stop := background(t, s)
		eventually(t, "the spool is replayed", func() bool { return s.Spooled() == 0 })
		stop()
		if err := spool.Close(); err != nil {
			t.Fatal(err)
		}
		if n := count(t, db, "true"); n != 251 {
			t.Errorf("%d receipts, want 251", n)
		}
	}
}

func TestASpooledReceiptThatPostgresRefusesDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `ALTER TABLE receipts ADD CHECK (model <> 'poison')`)
	spool := testSpool(t, t.TempDir(), 0)
	var receipts []Receipt
	for i := range 20 {
		receipts = append(receipts, testReceipt(fmt.Sprintf("req_%d", i)))
	}
	receipts[7].Model = "poison"
	if err := spool.Append(receipts); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	s := NewSettler(slog.New(slog.NewJSONHandler(&log, nil)), db.Worker, spool, SettleConfig{}, time.Now)
	background(t, s)
	eventually(t, "the spool is replayed", func() bool { return s.Spooled() == 0 })
	if n := count(t, db, "true"); n != 19 {
		t.Errorf("%d receipts, want 19", n)
	}
	if text := log.String(); !strings.Contains(text, `"request_id":"req_7"`) {
		t.Errorf("the refused receipt is not in the log: %s", text)
	}
}

func TestAWorkerWithoutTheFunctionSpoolsInsteadOfRefusing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `REVOKE EXECUTE ON FUNCTION weir_settle_tiered FROM weir_worker`)
	s := testSettler(t, db.Worker, testSpool(t, t.TempDir(), 0), SettleConfig{Retry: 10 * time.Millisecond})
	background(t, s)
	if err := s.Settle(t.Context(), testReceipt("req_1"), nil); err != nil {
		t.Fatal(err)
	}
	if !s.Away() {
		t.Error("not away")
	}
	exec(t, db, `GRANT EXECUTE ON FUNCTION weir_settle_tiered TO weir_worker`)
	eventually(t, "the receipt is stored", func() bool { return s.Spooled() == 0 })
	if n := count(t, db, "true"); n != 1 {
		t.Errorf("%d receipts, want 1", n)
	}
}

func TestRunEndsWhenWhatHasBegunIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	if err := s.Settle(t.Context(), testReceipt("req_warm"), nil); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Admin(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE receipt_ids`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	settled, ran := make(chan error, 1), make(chan error, 1)
	go func() { settled <- s.Settle(ctx, testReceipt("req_1"), nil) }()
	eventually(t, "a transaction is in flight", func() bool {
		s.group.mu.Lock()
		defer s.group.mu.Unlock()
		return s.group.running == 1 && !s.group.gathering
	})
	cancel()
	go func() { ran <- s.Run(ctx) }()
	select {
	case err := <-ran:
		t.Errorf("Run has ended (%v) while a receipt was on its way", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := <-settled; err != nil {
		t.Error(err)
	}
	if n := count(t, db, "request_id = 'req_1'"); n != 1 {
		t.Errorf("%d receipts, want 1", n)
	}
}
