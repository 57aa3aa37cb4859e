package billing

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"weir/migrations"
	"weir/migrations/pgserver"
)

// BenchmarkSettle measures receipts against a Postgres with fsync on: wall time
// (ns/op), CPU of this process and of every process of Postgres (cpu-us/op),
// and receipts a transaction.
func BenchmarkSettle(b *testing.B) {
	worker, data := durableServer(b)
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			reg := prometheus.NewRegistry()
			s := testSettler(b, worker, nil, SettleConfig{Metrics: reg})
			run := fmt.Sprintf("req_%d_%d_", time.Now().UnixNano(), callers)
			settle := func(n int64) {
				r := testReceipt(run + strconv.FormatInt(n, 10))
				if err := s.Settle(b.Context(), r, nil); err != nil {
					b.Error(err)
				}
			}
			settle(0)
			ours, theirs := ownCPU(b), serverCPU(b, data)
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						settle(n)
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			ours, theirs = ownCPU(b)-ours, serverCPU(b, data)-theirs
			b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "client-cpu-us/op")
			b.ReportMetric(float64(theirs.Microseconds())/float64(b.N), "postgres-cpu-us/op")
			b.ReportMetric(float64(b.N+1)/float64(batches(b, reg)), "receipts/tx")
		})
	}
}

// durableServer is a Postgres with fsync on and the schema, and its data folder.
func durableServer(b *testing.B) (worker *pgxpool.Pool, data string) {
	b.Helper()
	dir := b.TempDir()
	server, err := pgserver.Start(b.Context(), pgserver.Config{Dir: dir, Durable: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(b.Context()); err != nil {
			b.Log(err)
		}
	})
	logins, err := migrations.Prepare(b.Context(), server.URL("postgres"), "weir", server.Secret())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrations.Up(b.Context(), slog.New(slog.DiscardHandler), logins.Owner); err != nil {
		b.Fatal(err)
	}
	worker, err = pgxpool.New(b.Context(), logins.Worker)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(worker.Close)
	return worker, dir
}

func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverCPU is the time that the live processes of the server in dir have used,
// read from Linux's /proc; 0 elsewhere.
func serverCPU(b *testing.B, dir string) (sum time.Duration) {
	b.Helper()
	pids, err := filepath.Glob(filepath.Join(dir, "*", "postmaster.pid"))
	if err != nil || len(pids) != 1 {
		b.Fatalf("postmaster.pid: %v, %v", pids, err)
	}
	text, err := os.ReadFile(pids[0])
	if err != nil {
		b.Fatal(err)
	}
	postmaster, _, _ := strings.Cut(string(text), "\n")
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		// pid (name) state ppid ... utime stime, the 14th and 15th
		_, rest, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 || f[1] != postmaster && filepath.Base(filepath.Dir(path)) != postmaster {
			continue
		}
		for _, ticks := range f[11:13] {
			n, _ := strconv.ParseInt(ticks, 10, 64)
			sum += time.Duration(n) * time.Second / 100
		}
	}
	return sum
}
