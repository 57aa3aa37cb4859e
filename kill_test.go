package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"
)

const killCatalogue = `apiVersion: weir/v1
bands:
  - {name: standard, priority: 0}
plans:
  basic:
    bands: {default: standard}
    weight: 1
models:
  - {name: sim-chat, operations: [chat], routes: [{pool: sim}]}
pools:
  - {name: sim, isolation: verified, endpoints: [{id: sim-1, url: "ENGINE", engine: vllm, max_concurrency: 4}]}
prices:
  - {model: sim-chat, input: "1.00", cached_input: "0.20", output: "4.00"}
`

// witness is a model server that keeps account of what reached it and stops
// where a test wants it to: it knows the truth that receipts must agree with.
type witness struct {
	url string

	mu     sync.Mutex
	seen   map[string]int // tokens that were sent, by request id
	stopAt int            // tokens before which it waits; negative: never
	gone   chan struct{}  // closed when it shall go on
}

const (
	witnessTokens = 12
	witnessPlaces = 4
)

func newWitness(t *testing.T) *witness {
	t.Helper()
	w := &witness{seen: map[string]int{}, stopAt: -1, gone: make(chan struct{})}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	t.Cleanup(w.release)
	w.url = server.URL
	return w
}

// hold makes answers wait before their token n.
func (w *witness) hold(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopAt, w.gone = n, make(chan struct{})
}

// release lets go what waits, and later answers too.
func (w *witness) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopAt >= 0 {
		close(w.gone)
	}
	w.stopAt = -1
}

// truth is a copy of what was seen.
func (w *witness) truth() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[string]int, len(w.seen))
	for id, n := range w.seen {
		if strings.HasPrefix(id, "req_") { // else a probe's
			out[id] = n
		}
	}
	return out
}

func (w *witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
		if !strings.HasSuffix(r.URL.Path, "/health") && !strings.HasSuffix(r.URL.Path, "/metrics") {
			http.NotFound(rw, r)
		}
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	id, _, _ := strings.Cut(r.Header.Get("X-Request-Id"), ".")
	stream := gjson.GetBytes(body, "stream").Bool()
	for n := range witnessTokens {
		if !w.pass(r.Context(), id, n) {
			return
		}
		if !stream {
			continue
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		finish := "null"
		if n == witnessTokens-1 {
			finish = `"stop"`
		}
		fmt.Fprintf(rw, `data: {"id":"c","object":"chat.completion.chunk","created":1790000000,"model":"sim-chat","choices":[{"index":0,"delta":{"content":"a "},"finish_reason":%s}],"usage":{"prompt_tokens":20,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", finish, n+1, n+21)
		_ = http.NewResponseController(rw).Flush()
	}
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":20,"completion_tokens":%d,"total_tokens":%d}}`, witnessTokens, 20+witnessTokens)
	if stream {
		_, _ = io.WriteString(rw, `data: {"id":"c","object":"chat.completion.chunk","created":1790000000,"model":"sim-chat","choices":[],`+usage+"\n\ndata: [DONE]\n\n")
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(rw, `{"id":"c","object":"chat.completion","created":1790000000,"model":"sim-chat","choices":[{"index":0,"message":{"role":"assistant","content":"a a"},"finish_reason":"stop"}],`+usage)
}

// pass notes that an answer is about to get token n, and waits while it has to.
func (w *witness) pass(ctx context.Context, id string, n int) bool {
	w.mu.Lock()
	w.seen[id] = n
	wait, gone := w.stopAt == n, w.gone
	w.mu.Unlock()
	if wait {
		select {
		case <-gone:
		case <-ctx.Done():
			return false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[id] = n + 1
	return true
}

// killing is an installation whose replica is killed again and again.
type killing struct {
	*installation
	t        *testing.T
	engine   *witness
	postgres *wire
	owner    *pgx.Conn
	through  []string
	state    string
	url      string
	replica  *process
}

// moments are the instants at which a replica is killed. Each gets the replica
// there, under load, and returns what must be undone afterwards.
var moments = []struct {
	name  string
	reach func(k *killing) (undo func())
}{
	{"money is held, nothing was sent", func(k *killing) func() {
		k.begin(0, 2*witnessPlaces)
		return k.engine.release
	}},
	{"the engine has the request", func(k *killing) func() {
		k.begin(0, witnessPlaces)
		return k.engine.release
	}},
	{"the answer runs", func(k *killing) func() {
		k.begin(witnessTokens/2, witnessPlaces)
		return k.engine.release
	}},
	{"the answer has ended, nothing is stored", func(k *killing) func() {
		made := k.begin(0, witnessPlaces)
		k.postgres.mute("upstream")
		k.engine.release()
		k.until(func() string { return k.less(k.total()-made, witnessPlaces*witnessTokens) })
		return k.postgres.hear
	}},
	{"the transaction runs", func(k *killing) func() {
		k.begin(0, witnessPlaces)
		tx, err := k.owner.Begin(k.t.Context())
		if err != nil {
			k.t.Fatal(err)
		}
		if _, err := tx.Exec(k.t.Context(), `LOCK TABLE receipts IN EXCLUSIVE MODE`); err != nil {
			k.t.Fatal(err)
		}
		k.engine.release()
		k.until(func() string {
			var n int
			if err := tx.QueryRow(k.t.Context(), `SELECT count(*) FROM pg_locks WHERE relation = 'receipts'::regclass AND NOT granted`).Scan(&n); err != nil {
				return err.Error()
			}
			return k.less(n, 1)
		})
		return func() { _ = tx.Rollback(context.WithoutCancel(k.t.Context())) }
	}},
	{"the transaction has committed, nobody heard of it", func(k *killing) func() {
		k.begin(0, witnessPlaces)
		before := k.receipts()
		k.postgres.mute("downstream")
		k.engine.release()
		// A connection that had not settled before asks for types first, whose
		// answer it doesn't hear: then this kill is of the moment before.
		for began := time.Now(); k.receipts() == before && time.Since(began) < 5*time.Second; {
			<-time.After(20 * time.Millisecond)
		}
		return k.postgres.hear
	}},
}

// begin sends n requests and waits until the engine has as many as it takes and
// has made so many tokens of each, where it then holds them. It returns how
// many the engine had made before.
func (k *killing) begin(tokens, n int) (made int) {
	k.t.Helper()
	k.engine.hold(tokens)
	made = k.total()
	seen := len(k.engine.truth())
	k.load(n)
	k.until(func() string { return k.less(len(k.engine.truth())-seen, witnessPlaces) })
	k.until(func() string { return k.less(k.total()-made, witnessPlaces*tokens) })
	return made
}

// A replica that is killed at any moment leaves nothing unbilled and bills
// nothing twice. WEIR_TEST_KILLS says how often each moment is tried; make
// test-kill does it 50 times.
func TestAKilledReplicaLosesNoMoney(t *testing.T) {
	t.Parallel()
	times, err := strconv.Atoi(os.Getenv("WEIR_TEST_KILLS"))
	if err != nil {
		times = 1
	}
	for _, m := range moments {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			k := newKilling(t)
			for range times {
				undo := m.reach(k)
				k.replica.stop(t, syscall.SIGKILL)
				undo()
				k.start()
				k.settled()
			}
			k.returned()
		})
	}
}

// With Redis another replica settles what a dead one left, though the state
// folder of that one is gone with its machine.
func TestAReplicaSettlesWhatAnotherLeft(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	startRedis(t, port)
	k := newKilling(t, "WEIR_REDIS_URL=redis://127.0.0.1:"+port)
	first := k.replica
	k.begin(witnessTokens/2, witnessPlaces)
	k.state = t.TempDir()
	dying := k.url
	k.url, k.replica = k.serve(t, k.settings()...)
	if k.url == dying {
		t.Fatal("no second replica")
	}
	first.stop(t, syscall.SIGKILL)
	k.engine.release()
	k.settled()
	k.returned()
	var billed int
	if err := k.owner.QueryRow(t.Context(), `SELECT count(*) FROM receipts WHERE settled_by = 'sweeper' AND output BETWEEN 1 AND $1`, witnessTokens/2).Scan(&billed); err != nil {
		t.Fatal(err)
	}
	if billed == 0 {
		t.Error("nothing was billed of the streams that ran for seconds when their replica died")
	}
}

// newKilling starts the first replica, with further settings where they are
// given.
func newKilling(t *testing.T, further ...string) *killing {
	t.Helper()
	k := &killing{t: t, engine: newWitness(t), state: t.TempDir()}
	k.installation = installWith(t, strings.ReplaceAll(killCatalogue, "ENGINE", k.engine.url))
	k.postgres, k.through = throughWire(t, k.environment)
	k.through = append(k.through, further...)
	for _, line := range k.environment {
		if url, ok := strings.CutPrefix(line, "WEIR_OWNER_DATABASE_URL="); ok {
			owner, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = owner.Close(context.WithoutCancel(t.Context())) })
			k.owner = owner
			if _, err := owner.Exec(t.Context(), `SELECT weir_credit($1, 'paid', 5000000000, 'opening')`, k.tenant); err != nil {
				t.Fatal(err)
			}
		}
	}
	k.start()
	return k
}

func (k *killing) settings() []string {
	return slices.Concat(k.through, []string{
		"WEIR_STATE_DIR=" + k.state, "WEIR_BILLING_MODE=enforce", "WEIR_ORPHAN_AFTER=1s", "WEIR_BILLING_CHUNK_TTL=5s",
		"WEIR_REPLICAS=1", // else places are divided by the dead too, for a while
	})
}

// start runs the replica, on the state that the one before left, and has it
// serve once, so that it knows the key.
func (k *killing) start() {
	k.t.Helper()
	k.url, k.replica = k.serve(k.t, k.settings()...)
	res, err := post(k.t.Context(), k.url+"/v1/chat/completions", k.key, chatBody(witnessTokens, true))
	if err != nil {
		k.t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		k.t.Fatalf("a replica that came back: %v %s %s", err, res.Status, text)
	}
}

// load sends requests, half of them streams. What becomes of them is nobody's
// concern: their callers see the connection break.
func (k *killing) load(n int) {
	ctx := context.WithoutCancel(k.t.Context())
	for i := range n {
		go func() {
			res, err := post(ctx, k.url+"/v1/chat/completions", k.key, chatBody(witnessTokens, i%2 == 0))
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}()
	}
}

func (k *killing) until(missing func() string) {
	k.t.Helper()
	eventually(k.t, 2*time.Minute, missing)
}

func (k *killing) less(have, want int) string {
	if have < want {
		return fmt.Sprintf("%d of %d", have, want)
	}
	return ""
}

// total is how many tokens the engine sent, in all.
func (k *killing) total() (n int) {
	for _, sent := range k.engine.truth() {
		n += sent
	}
	return n
}

func (k *killing) receipts() (n int) {
	k.t.Helper()
	if err := k.owner.QueryRow(k.t.Context(), `SELECT count(*) FROM receipt_ids`).Scan(&n); err != nil {
		k.t.Fatal(err)
	}
	return n
}

// settled waits until nothing is open that the dead replica left, and holds what
// the engine knows against what was stored: all that reached the engine has one
// receipt, and the books are sound.
func (k *killing) settled() {
	k.t.Helper()
	k.until(func() string {
		for id := range k.engine.truth() {
			var n int
			if err := k.owner.QueryRow(k.t.Context(), `SELECT count(*) FROM receipts WHERE request_id = $1`, id).Scan(&n); err != nil {
				k.t.Fatal(err)
			}
			if n != 1 {
				return fmt.Sprintf("%d receipts of %s", n, id)
			}
		}
		return ""
	})
	var overbilled int
	err := k.owner.QueryRow(k.t.Context(), `SELECT count(*) FROM receipts WHERE settled_by = 'sweeper' AND output > $1`, witnessTokens).Scan(&overbilled)
	if err != nil || overbilled > 0 {
		k.t.Errorf("%d orphans were billed for more than was made: %v", overbilled, err)
	}
	runWeir(k.t, k.dir, k.environment, "ledger", "check") // fails the test when something doesn't add up
}

// returned waits until the dead hold no money any more.
func (k *killing) returned() {
	k.t.Helper()
	var replicas int
	k.until(func() string {
		if err := k.owner.QueryRow(k.t.Context(), `SELECT count(DISTINCT replica) FROM chunks`).Scan(&replicas); err != nil {
			k.t.Fatal(err)
		}
		if replicas > 1 {
			return fmt.Sprintf("%d replicas hold money, one lives", replicas)
		}
		return ""
	})
	runWeir(k.t, k.dir, k.environment, "ledger", "check")
}
