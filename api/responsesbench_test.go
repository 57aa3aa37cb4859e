package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/migrations/pgtest"
	"weir/responses"
	"weir/tenants"
)

// turnBytes is what one turn says: about 2,000 tokens, half of them the
// model's.
const turnBytes = 8 << 10

// chains is a real store with chains of some lengths in it.
type chains struct {
	db    *pgtest.DB
	vault *tenants.Vault
	owner responses.Owner
}

func newChains(b *testing.B) *chains {
	b.Helper()
	c := &chains{db: pgtest.New(b)}
	secret := func(n byte) string { return "1:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{n}, 32)) }
	peppers, err := tenants.ParsePeppers(secret(1))
	if err != nil {
		b.Fatal(err)
	}
	masters, err := tenants.ParseMasterKeys(secret(2))
	if err != nil {
		b.Fatal(err)
	}
	err = pgx.BeginFunc(b.Context(), c.db.App, func(tx pgx.Tx) error {
		return tenants.PutPlans(b.Context(), tx, map[string]tenants.Plan{"p": {
			Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}, Weight: 1, Fairness: tenants.FairnessTenant,
		}})
	})
	if err != nil {
		b.Fatal(err)
	}
	tenant, project, err := tenants.NewStore(c.db.App, peppers, time.Now).CreateTenant(b.Context(), "operator:test", "t", "p")
	if err != nil {
		b.Fatal(err)
	}
	c.owner = responses.Owner{Tenant: tenant.ID, Project: project.ID}
	if c.vault, err = tenants.NewVault(c.db.App, masters); err != nil {
		b.Fatal(err)
	}
	return c
}

// add stores a chain of so many turns and returns its last response.
func (c *chains) add(b *testing.B, turns int) (last string) {
	b.Helper()
	store := responses.NewPostgres(c.db.App, c.vault, 0, time.Now)
	say := func(role string) []responses.Item {
		list, err := responses.ParseInput("input", gjson.Parse(`[{"role":"`+role+`","content":"`+strings.Repeat("words ", turnBytes/12)+`"}]`))
		if err != nil {
			b.Fatal(err)
		}
		return list
	}
	root := ""
	for n := 1; n <= turns; n++ {
		id := responses.NewID()
		if root == "" {
			root = id
		}
		effect, err := store.Save(b.Context(), &responses.Record{
			ID: id, Owner: c.owner, Key: "key_1", Previous: last, Root: root, Turn: n, Status: responses.Completed, Model: "sim-chat",
			CreatedAt: time.Now(), Object: []byte(`{}`), Input: say("user"), Output: say("assistant"),
		})
		if err != nil {
			b.Fatal(err)
		}
		var batch pgx.Batch
		effect(&batch)
		if err := c.db.Worker.SendBatch(b.Context(), &batch).Close(); err != nil {
			b.Fatal(err)
		}
		last = id
	}
	return last
}

// chatOf is a Chat request of the same context.
func chatOf(turns int) []byte {
	text := strings.Repeat("words ", turnBytes/12)
	var b strings.Builder
	b.WriteString(`{"model":"sim-chat","stream":true,"messages":[`)
	for range turns {
		b.WriteString(`{"role":"user","content":"` + text + `"},{"role":"assistant","content":"` + text + `"},`)
	}
	return []byte(b.String() + `{"role":"user","content":"and then?"}]}`)
}

// BenchmarkChain sets a turn of a chain beside the Chat request that says the
// same: all of the request's way through this process but the exchange itself,
// with a real Postgres. "remembered" is a replica that had the chain's last
// turn, "loaded" one that had not.
func BenchmarkChain(b *testing.B) {
	c := newChains(b)
	keys := newKeyring()
	keys.keys["good"].Tenant, keys.keys["good"].Project = c.owner.Tenant, c.owner.Project
	keys.keys["good"].Plan = &tenants.Plan{RetentionDays: 30}
	sealer, err := responses.NewSealer([]byte("secret"))
	if err != nil {
		b.Fatal(err)
	}
	serverWith := func(cache int) http.Handler {
		return New(slog.New(slog.DiscardHandler), Deps{
			Keys: keys, Gateway: runner(respond), Catalogue: func() Catalogue { return newShop() },
			Responses: responses.NewPostgres(c.db.App, c.vault, cache, time.Now), Sealer: sealer,
		}).Handler()
	}
	remembered, loaded := serverWith(64<<20), serverWith(0)
	for _, turns := range []int{1, 20, 200} {
		body := []byte(`{"model":"sim-chat","stream":true,"store":false,"input":"and then?","previous_response_id":"` + c.add(b, turns) + `"}`)
		for _, way := range []struct {
			name, path string
			handler    http.Handler
			body       []byte
		}{
			{"chat", "/v1/chat/completions", remembered, chatOf(turns)},
			{"remembered", "/v1/responses", remembered, body},
			{"loaded", "/v1/responses", loaded, body},
		} {
			b.Run(fmt.Sprintf("turns=%d/%s", turns, way.name), func(b *testing.B) {
				b.ReportAllocs()
				begin := cpuTime(b)
				for b.Loop() {
					r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, way.path, io.NopCloser(bytes.NewReader(way.body)))
					if err != nil {
						b.Fatal(err)
					}
					r.ContentLength, r.RemoteAddr = int64(len(way.body)), "192.0.2.1:80"
					r.Header["Authorization"], r.Header["Content-Type"] = []string{"Bearer good"}, []string{"application/json"}
					w := &status{header: http.Header{}}
					way.handler.ServeHTTP(w, r)
					if w.code != http.StatusOK {
						b.Fatalf("status %d", w.code)
					}
				}
				b.ReportMetric(float64((cpuTime(b)-begin).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// cpuTime is what this process has used: unlike the time that passes, it is much
// the same on a busy machine. Postgres' own is not in it.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// status keeps an answer's.
type status struct {
	nowhere

	code int
}

func (s *status) WriteHeader(code int) { s.code = code }
