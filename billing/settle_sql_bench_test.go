package billing

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"weir/bench/proc"
)

// BenchmarkSettleSQL measures what the settle function costs the one backend
// that runs it: CPU and wall time for each receipt, with fsync on, and nobody
// else at work. "before" is the function of the version without money.
func BenchmarkSettleSQL(b *testing.B) {
	worker, _ := durableServer(b)
	for _, form := range []struct {
		name    string
		before  bool
		mode    Mode
		tenants int
	}{
		{"before", true, ModeOff, 1},
		{"off", false, ModeOff, 1},
		{"shadow", false, ModeShadow, 1},
		{"enforce/1", false, ModeEnforce, 1},
		{"enforce/100", false, ModeEnforce, 100},
		{"enforce/10000", false, ModeEnforce, 10_000},
	} {
		for _, size := range []int{1, 200, 1000} {
			b.Run(fmt.Sprintf("%s/batch=%d", form.name, size), func(b *testing.B) {
				conn, err := worker.Acquire(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Release()
				settle := newSQLSettle(b, conn.Conn(), form.before)
				payers := benchPayers(b, worker, form.mode, form.tenants)
				for range 10 {
					settle(payers.batch(size))
				}
				began := backendCPU(b, conn.Conn())
				b.ResetTimer()
				n := 0
				for ; b.Loop(); n += size {
					settle(payers.batch(size))
				}
				b.StopTimer()
				took := backendCPU(b, conn.Conn()) - began
				b.ReportMetric(float64(took.Nanoseconds())/1e3/float64(n), "cpu-us/receipt")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1e3/float64(n), "us/receipt")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkSettleMoney measures the settle writer with everything booked: how
// many receipts a second become durable, and what a receipt costs this process
// and Postgres.
func BenchmarkSettleMoney(b *testing.B) {
	worker, data := durableServer(b)
	for _, tenants := range []int{1, 100, 10_000} {
		for _, shape := range []struct{ callers, batch, inFlight int }{
			{512, 200, 2}, {2048, 500, 2},
		} {
			b.Run(fmt.Sprintf("tenants=%d/callers=%d/batch=%d/inflight=%d", tenants, shape.callers, shape.batch, shape.inFlight), func(b *testing.B) {
				reg := prometheus.NewRegistry()
				s := testSettler(b, worker, nil, SettleConfig{Metrics: reg, MaxBatch: shape.batch, MaxInFlight: shape.inFlight})
				payers := benchPayers(b, worker, ModeEnforce, tenants)
				ours, theirs := proc.Own(), serverCPU(b, data)
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ResetTimer()
				for range shape.callers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if err := s.Settle(b.Context(), payers.receipt(), nil); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				ours, theirs = proc.Own()-ours, serverCPU(b, data)-theirs
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "receipts/s")
				b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "client-cpu-us/op")
				b.ReportMetric(float64(theirs.Microseconds())/float64(b.N), "postgres-cpu-us/op")
				b.ReportMetric(float64(b.N)/float64(batches(b, reg)), "receipts/tx")
			})
		}
	}
}

func newSQLSettle(b *testing.B, conn *pgx.Conn, before bool) func([]*settlement) {
	b.Helper()
	sql, row := settleSQL, "weir_receipt_tiered"
	if before {
		sql, row = `SELECT weir_settle($1), 0`, "weir_receipt"
	}
	types, err := conn.LoadTypes(b.Context(), []string{row, "_" + row})
	if err != nil {
		b.Fatal(err)
	}
	conn.TypeMap().RegisterTypes(types)
	return func(batch []*settlement) {
		rows, _ := rowsOf(batch)
		var done settled
		if err := done.scan(conn.QueryRow(b.Context(), sql, rows)); err != nil || len(done.stored) != len(batch) {
			b.Fatal(len(done.stored), err)
		}
	}
}

// benchmarkPayers makes receipts of tenants that have a wallet, a chunk and
// credit each.
type benchmarkPayers struct {
	mode    Mode
	tenants []string
	chunks  []int64
	next    atomic.Int64
	run     string
}

func benchPayers(b *testing.B, q Querier, mode Mode, tenants int) *benchmarkPayers {
	b.Helper()
	p := &benchmarkPayers{mode: mode, run: strconv.FormatInt(time.Now().UnixNano(), 36)}
	rows, err := q.Query(b.Context(), `
		SELECT tenant, (SELECT chunk FROM weir_draw(tenant, ARRAY[tenant], 1000000000000, 1000000000000, $2, '1h'))
		  FROM (SELECT 'ten_' || $2::text || n AS tenant, weir_credit('ten_' || $2::text || n, 'paid', 4000000000000, 'bench')
		          FROM generate_series(1, $1::integer) n OFFSET 0) t`, tenants, p.run)
	if err != nil {
		b.Fatal(err)
	}
	var tenant string
	var chunk int64
	_, err = pgx.ForEachRow(rows, []any{&tenant, &chunk}, func() error {
		p.tenants, p.chunks = append(p.tenants, tenant), append(p.chunks, chunk)
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *benchmarkPayers) receipt() Receipt {
	n := p.next.Add(1)
	of := int(n) % len(p.tenants)
	r := testReceipt("req_" + p.run + "_" + strconv.FormatInt(n, 10))
	r.Mode, r.Tenant, r.Key = p.mode, p.tenants[of], "key_of_"+p.tenants[of]
	if p.mode == ModeEnforce {
		r.Chunks = p.chunks[of : of+1]
	}
	return r
}

func (p *benchmarkPayers) batch(n int) []*settlement {
	all := make([]*settlement, n)
	for i := range all {
		all[i] = &settlement{receipt: p.receipt()}
	}
	return all
}

// backendCPU is what the connection's backend has used, from Linux's scheduler;
// 0 elsewhere.
func backendCPU(b *testing.B, conn *pgx.Conn) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", conn.PgConn().PID()))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(stat), " ")
	n, _ := strconv.ParseInt(first, 10, 64)
	return time.Duration(n)
}
