package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

const creditCatalogue = `apiVersion: weir/v1
bands:
  - {name: standard, priority: 0}
plans:
  basic:
    bands: {default: standard}
    weight: 1
    retention_days: 1
models:
  - {name: sim-chat, operations: [chat, completions], context_length: 16384, routes: [{pool: sim}]}
  - {name: sim-embed, operations: [embeddings], routes: [{pool: sim}]}
pools:
  - {name: sim, isolation: verified, endpoints: [{id: sim-1, url: "ENGINE", engine: sim}]}
prices:
  - {model: sim-chat, input: "1.00", output: "20.00"}
  - {model: sim-embed, input: "0.10", output: "0"}
`

// spender is a caller of a tenant that pays as it goes.
type spender struct {
	*installation
	base string
}

func newSpender(t *testing.T) *spender {
	t.Helper()
	return &spender{installation: installWith(t, strings.ReplaceAll(creditCatalogue, "ENGINE", startEngine(t)))}
}

func (s *spender) start(t *testing.T, environment ...string) {
	t.Helper()
	s.base, _ = s.serve(t, append(environment, "WEIR_BILLING_MODE=enforce", "WEIR_BILLING_HOLD_SLICE_TOKENS=64")...)
}

func (s *spender) ask(t *testing.T, path, body string) answer {
	t.Helper()
	res, err := post(t.Context(), s.base+path, s.key, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: %v after %q", res.Status, err, text)
	}
	return answer{status: res.StatusCode, header: res.Header, text: string(text), id: res.Header.Get("X-Request-Id")}
}

func (s *spender) credit(t *testing.T, usd string) {
	t.Helper()
	runWeir(t, s.dir, s.environment, "credit", s.tenant, usd)
}

// A tenant spends its credit to zero: a stream that runs then ends as at a bound
// of its own, who asks next gets a clear 402, and new credit brings it back.
func TestATenantSpendsItsCreditToZero(t *testing.T) {
	t.Parallel()
	s := newSpender(t)
	s.start(t)
	refused := func(a answer) string {
		e := gjson.Get(a.text, "error")
		message := e.Get("message").Str
		if a.status != http.StatusPaymentRequired || e.Get("type").Str != "insufficient_quota" || e.Get("code").Str != "insufficient_quota" ||
			!strings.Contains(message, "The credit of this organization") || strings.ContainsAny(message, "0123456789") {
			return fmt.Sprint(a.status, " ", a.text)
		}
		return ""
	}
	for path, body := range map[string]string{
		"/v1/embeddings":       `{"model":"sim-embed","input":"Tell me"}`,
		"/v1/chat/completions": chatBody(10, false),
		"/v1/completions":      `{"model":"sim-chat","prompt":"Tell me","max_tokens":10}`,
		"/v1/responses":        `{"model":"sim-chat","input":"Tell me"}`,
	} {
		if why := refused(s.ask(t, path, body)); why != "" {
			t.Errorf("%s without credit: %s", path, why)
		}
	}

	made := s.ask(t, "/v1/responses", `{"model":"sim-chat","input":"Tell me","background":true}`)
	id := gjson.Get(made.text, "id").Str
	eventually(t, 30*time.Second, func() string {
		var run struct {
			Status json.RawMessage `json:"status"`
			Error  json.RawMessage `json:"error"`
		}
		getJSON(t, s.base+"/v1/responses/"+id, s.key, &run)
		if string(run.Status) != `"failed"` || !strings.Contains(string(run.Error), `"insufficient_quota"`) {
			return fmt.Sprintf("in the background: %s, %s", run.Status, run.Error)
		}
		return ""
	})

	s.credit(t, "0.001") // 50 tokens, and an answer has more
	var a answer
	eventually(t, 10*time.Second, func() string {
		if a = s.ask(t, "/v1/chat/completions", chatBody(4000, true)); a.status != http.StatusOK {
			return a.text
		}
		return ""
	})
	events := strings.Split(strings.TrimSpace(a.text), "\n\n")
	last := gjson.Parse(strings.TrimPrefix(events[max(0, len(events)-2)], "data: "))
	if events[len(events)-1] != "data: [DONE]" || last.Get("choices.0.finish_reason").Str != "length" || last.Get("weir.code").Str != "budget_exhausted" {
		t.Errorf("the stream ended with %s", strings.Join(events[max(0, len(events)-3):], "\n"))
	}
	if n := len(events); n < 30 || n > 50 {
		t.Errorf("%d events for credit worth 50 tokens", n)
	}

	for i := 0; ; i++ { // what is left, to the last request that it affords
		if a = s.ask(t, "/v1/chat/completions", chatBody(10, false)); a.status != http.StatusOK {
			break
		}
		if i > 50 {
			t.Fatal("the credit has no end")
		}
	}
	if why := refused(a); why != "" {
		t.Error(why)
	}
	if balance := s.balance(t); balance < 0 || balance >= 400_000 {
		t.Errorf("%d nano-USD are left: that is worth a request, or less than nothing", balance)
	}

	s.credit(t, "0.001")
	eventually(t, 10*time.Second, func() string {
		a = s.ask(t, "/v1/responses", `{"model":"sim-chat","input":"Tell me a very long story.","max_output_tokens":4000,"stream":true}`)
		if a.status != http.StatusOK {
			return a.text
		}
		return ""
	})
	if !strings.Contains(a.text, `"incomplete_details":{"reason":"max_output_tokens","code":"budget_exhausted"}`) || !strings.Contains(a.text, "event: response.incomplete\n") {
		t.Errorf("the response ended with %s", a.text[max(0, len(a.text)-1500):])
	}
}

func (s *spender) balance(t *testing.T) (nano int64) {
	t.Helper()
	if err := s.db.Admin(t).QueryRow(t.Context(), `SELECT balance_nano FROM wallets WHERE node = $1`, s.tenant).Scan(&nano); err != nil {
		t.Fatal(err)
	}
	return nano
}

// While Postgres is away a replica spends what it holds, and finishes what runs;
// beyond that it says that it can't tell, and when to come back. Nothing is
// spent twice.
func TestWhilePostgresIsAwayCreditIsSpentThatIsHere(t *testing.T) {
	t.Parallel()
	s := newSpender(t)
	s.credit(t, "1.00")
	wire, through := throughWire(t, s.environment)
	s.start(t, through...)
	for range 3 { // so that it holds more than a request needs
		if a := s.ask(t, "/v1/chat/completions", chatBody(60, false)); a.status != http.StatusOK {
			t.Fatal(a.text)
		}
	}
	res, err := post(t.Context(), s.base+"/v1/chat/completions", s.key, chatBody(600, true))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()

	wire.cut()
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") || strings.Contains(string(text), "budget_exhausted") {
		t.Errorf("a stream that ran when Postgres went: %v, %s", err, text[max(0, len(text)-300):])
	}
	var a answer
	for range 500 {
		if a = s.ask(t, "/v1/chat/completions", chatBody(60, false)); a.status != http.StatusOK {
			break
		}
	}
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.text, `"billing_unavailable"`) {
		t.Errorf("beyond what is here: %d %v %s", a.status, a.header, a.text)
	}

	wire.mend()
	eventually(t, 60*time.Second, func() string {
		if a = s.ask(t, "/v1/chat/completions", chatBody(60, false)); a.status != http.StatusOK {
			return a.text
		}
		return ""
	})
	s.agree(t)
}

// agree waits until the wallet has lost what the receipts cost, of one dollar.
func (s *spender) agree(t *testing.T) {
	t.Helper()
	eventually(t, 60*time.Second, func() string {
		var wrong int64
		err := s.db.Admin(t).QueryRow(t.Context(), `
			SELECT 1000000000 - balance_nano - (SELECT coalesce(sum(cost_nano), 0)::bigint FROM receipts)
			  FROM wallets WHERE node = $1`, s.tenant).Scan(&wrong)
		if err != nil || wrong != 0 {
			return fmt.Sprint("the wallet and the receipts differ by ", wrong, ", ", err)
		}
		return ""
	})
}

// Redis counts limits, not money: when it goes, in the middle of a stream too,
// and when it comes back slow, every request is paid for once.
func TestWhileRedisIsAwayMoneyIsUnaffected(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	startRedis(t, port)
	redis := newWire(t, "127.0.0.1:"+port)
	s := newSpender(t)
	s.credit(t, "1.00")
	s.start(t, "WEIR_REDIS_URL=redis://"+redis.address())
	ask := func(when string) {
		t.Helper()
		if a := s.ask(t, "/v1/chat/completions", chatBody(20, false)); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", when, a.status, a.text)
		}
	}
	ask("before")
	res, err := post(t.Context(), s.base+"/v1/chat/completions", s.key, chatBody(300, true))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()

	redis.cut()
	for range 5 {
		ask("while Redis is away")
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		t.Errorf("a stream that ran when Redis went: %v, %s", err, text[max(0, len(text)-300):])
	}
	redis.slow(100 * time.Millisecond)
	redis.mend()
	for range 5 {
		ask("over a slow Redis")
	}
	readinessIs(t, s.ops, "ready")
	ask("after")
	s.agree(t)
	if out := runWeir(t, s.dir, s.environment, "receipts", "--tenant", s.tenant); strings.Count(out, "req_") != 13 {
		t.Errorf("not one receipt for each of 13 requests:\n%s", out)
	}
	runWeir(t, s.dir, s.environment, "ledger", "check")
}
