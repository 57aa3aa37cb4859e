package billing

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"weir/bench/proc"
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
			ours, theirs := proc.Own(), serverCPU(b, data)
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
			ours, theirs = proc.Own()-ours, serverCPU(b, data)-theirs
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

// serverCPU is the time that the server in dir has used; 0 but on Linux.
func serverCPU(b *testing.B, dir string) time.Duration {
	b.Helper()
	pid, err := proc.Postmaster(dir)
	if err != nil {
		b.Fatal(err)
	}
	return proc.Of(pid)
}
