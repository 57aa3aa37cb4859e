//nolint:thelper // most functions here are the tests themselves: a failure should name their own line
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"weir/billing"
)

// What only the whole program shows: what a caller sends through the gateway,
// what the engine sees of it, and what is stored about it.

const wholeCatalogue = `apiVersion: weir/v1
bands:
  - {name: interactive, priority: 100}
  - {name: standard, priority: 0}
  - {name: night, priority: -10}
plans:
  basic:
    bands: {default: standard, priority: interactive, flex: night}
    weight: 1
pools:
  - {name: sound, isolation: verified, endpoints: [{id: a, url: "ENGINE", engine: sim}]}
  - {name: faulty, endpoints: [{id: b, url: "FAULTY1", engine: sim}, {id: c, url: "FAULTY2", engine: sim}]}
models:
  - name: org/chat-1
    aliases: [chat]
    engine_model: sim-chat
    operations: [chat, completions]
    routes: [{pool: sound}]
    chat_template_kwargs: [enable_thinking]
  - {name: embed, engine_model: sim-embed, operations: [embeddings], routes: [{pool: sound}]}
  - {name: flaky, engine_model: sim-chat, operations: [chat], routes: [{pool: faulty}]}
prices:
  - {model: org/chat-1, input: "0.10", cached_input: "0.02", output: "0.40"}
`

func startEngine(t *testing.T, flags ...string) (url string) {
	t.Helper()
	address := freeAddress(t)
	startWeir(t, t.TempDir(), nil, append([]string{"sim", "--listen", address, "--model", "sim-chat,sim-embed"}, flags...)...)
	waitFor(t, "http://"+address+"/health")
	return "http://" + address
}

// whole is a replica with three engines behind it.
type whole struct {
	*installation
	url, sound string
	faulty     [2]string
}

func startWhole(t *testing.T) *whole {
	t.Helper()
	w := &whole{sound: startEngine(t), faulty: [2]string{startEngine(t), startEngine(t)}}
	w.installation = installWith(t, strings.NewReplacer("ENGINE", w.sound, "FAULTY1", w.faulty[0], "FAULTY2", w.faulty[1]).Replace(wholeCatalogue))
	w.url, _ = w.serve(t)
	return w
}

// answer is one answer of the API, read to its end.
type answer struct {
	status int
	header http.Header
	text   string
	id     string
}

func (w *whole) send(t *testing.T, key, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
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

// chat sends a short chat with the extra members.
func (w *whole) chat(t *testing.T, model, extra string, header ...string) answer {
	t.Helper()
	return w.send(t, w.key, "/v1/chat/completions", chatWith(model, extra), header...)
}

func chatWith(model, extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return `{"model":"` + model + `","messages":[{"role":"user","content":"Tell me a story."}]` + extra + `}`
}

// arrived is what the engine was sent for a request.
type arrived struct {
	Header  http.Header
	Body    string
	Outcome string

	fields map[string]json.RawMessage
}

func arrivedAt(t *testing.T, engine, requestID string) arrived {
	t.Helper()
	var log struct{ Requests []arrived }
	getJSON(t, engine+"/admin/requests?last=64", "", &log)
	for _, r := range log.Requests {
		if strings.HasPrefix(r.Header.Get("X-Request-Id"), requestID) {
			if err := json.Unmarshal([]byte(r.Body), &r.fields); err != nil {
				t.Fatalf("the engine was sent %q: %v", r.Body, err)
			}
			return r
		}
	}
	t.Fatalf("request %q did not reach the engine", requestID)
	return arrived{}
}

// receipt waits for what is stored about a request.
func (w *whole) receipt(t *testing.T, requestID string) billing.Receipt {
	t.Helper()
	var r billing.Receipt
	eventually(t, 10*time.Second, func() string {
		out := runWeir(t, w.dir, w.environment, "receipts", "--tenant", w.tenant, "--request", requestID, "--json")
		if out == "" {
			return "no receipt of " + requestID
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		return ""
	})
	return r
}

func TestTheWholeProgram(t *testing.T) {
	t.Parallel()
	w := startWhole(t)
	for name, test := range map[string]func(*testing.T, *whole){
		"what callers invent changes nothing at the engine":      inventionsChangeNothing,
		"parameters of open models reach the engine":             openParametersArrive,
		"the service tier chooses the band and is echoed":        tierChoosesBand,
		"a model answers under its alias by its own name":        aliasAnswers,
		"compressed bodies are read":                             compressedBodies,
		"a caller who leaves stops the engine and pays for some": leavingAborts,
		"limits of a key hold and are told":                      limitsAreTold,
		"a key's restrictions hold":                              restrictionsHold,
		"an engine's faults end as the protocol says":            engineFaults,
		"the operator's page has one spelling":                   poolsPage,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

func inventionsChangeNothing(t *testing.T, w *whole) {
	honest := arrivedAt(t, w.sound, w.chat(t, "org/chat-1", `"max_tokens":1`).id)
	a := w.chat(t, "org/chat-1", `"max_tokens":1,"cache_salt":"theirs","priority":-100,"no_such_field":{"a":1}`,
		"X-Llm-D-Inference-Objective", "vip", "X-Llm-D-Fairness-Id", "someone-else", "X-Gateway-Destination-Endpoint", "10.0.0.1:80",
		"X-Gateway-Model-Name-Rewrite", "other", "X-Data-Parallel-Rank", "3", "X-Request-Id", "mine", "X-Sim-Fault", "status=500", "Cookie", "a=b")
	if a.status != http.StatusOK || a.id == "mine" {
		t.Fatalf("answered %d as %q: %s", a.status, a.id, a.text)
	}
	for _, name := range []string{"cache_salt", "priority", "no_such_field"} {
		if !strings.Contains(a.header.Get("X-Weir-Ignored"), name) {
			t.Errorf("%s was dropped in silence: x-weir-ignored is %q", name, a.header.Get("X-Weir-Ignored"))
		}
	}
	forged := arrivedAt(t, w.sound, a.id)
	honest.Header.Del("X-Request-Id")
	forged.Header.Del("X-Request-Id")
	for name, values := range forged.Header {
		if strings.Join(values, ",") != strings.Join(honest.Header[name], ",") {
			t.Errorf("the engine saw %s: %q, and without the inventions %q", name, values, honest.Header[name])
		}
	}
	if forged.Body != honest.Body {
		t.Errorf("the engine was sent %s, and without the inventions %s", forged.Body, honest.Body)
	}
	salt := string(forged.fields["cache_salt"])
	if len(salt) < 20 || strings.Contains(salt, "theirs") || strings.Contains(forged.Body, w.tenant) {
		t.Errorf("cache_salt %s", salt)
	}
}

func openParametersArrive(t *testing.T, w *whole) {
	a := w.chat(t, "org/chat-1", `"max_tokens":40,"top_k":20,"min_p":0.1,"repetition_penalty":1.05,`+
		`"chat_template_kwargs":{"enable_thinking":false,"secret_switch":1},`+
		`"guided_json":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
	if a.status != http.StatusOK {
		t.Fatal(a.text)
	}
	if got := a.header.Get("X-Weir-Ignored"); got != "chat_template_kwargs.secret_switch" {
		t.Errorf("x-weir-ignored is %q", got)
	}
	got := arrivedAt(t, w.sound, a.id).fields
	for name, want := range map[string]string{
		"model": `"sim-chat"`, "top_k": "20", "min_p": "0.1", "repetition_penalty": "1.05", "chat_template_kwargs": `{"enable_thinking":false}`,
	} {
		if string(got[name]) != want {
			t.Errorf("%s arrived as %s, want %s", name, got[name], want)
		}
	}
	if got["guided_json"] != nil || !strings.Contains(string(got["response_format"]), `"json_schema"`) {
		t.Errorf("guided_json arrived as %s and response_format %s", got["guided_json"], got["response_format"])
	}
	var chat struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	var content struct {
		N *int `json:"n"`
	}
	if err := json.Unmarshal([]byte(a.text), &chat); err != nil || json.Unmarshal([]byte(chat.Choices[0].Message.Content), &content) != nil || content.N == nil {
		t.Errorf("the answer doesn't keep to the schema: %s", a.text)
	}
}

func tierChoosesBand(t *testing.T, w *whole) {
	for _, row := range []struct{ asked, band, echoed string }{
		{``, "standard", ""},
		{`"service_tier":"auto"`, "standard", "default"},
		{`"service_tier":"default"`, "standard", "default"},
		{`"service_tier":"flex"`, "night", "flex"},
		{`"service_tier":"priority"`, "interactive", "priority"},
	} {
		extra := `"max_tokens":1`
		if row.asked != "" {
			extra += "," + row.asked
		}
		a := w.chat(t, "org/chat-1", extra)
		var got struct {
			Tier string `json:"service_tier"`
		}
		if err := json.Unmarshal([]byte(a.text), &got); err != nil {
			t.Fatal(a.text)
		}
		if band := a.header.Get("X-Weir-Band"); band != row.band || got.Tier != row.echoed {
			t.Errorf("asked %s: band %q, tier %q; want %q, %q", row.asked, band, got.Tier, row.band, row.echoed)
		}
		if row.band == "night" {
			if r := w.receipt(t, a.id); r.Band != "night" || r.Tier != "flex" || r.CostNano == 0 {
				t.Errorf("receipt %+v", r)
			}
		}
	}
}

func aliasAnswers(t *testing.T, w *whole) {
	a := w.chat(t, "chat", `"max_tokens":1`)
	var got struct {
		Model string `json:"model"`
	}
	if err := json.Unmarshal([]byte(a.text), &got); err != nil || got.Model != "org/chat-1" {
		t.Errorf("answered %s", a.text)
	}
	var model struct {
		ID      string `json:"id"`
		Created int64  `json:"created"`
	}
	for _, name := range []string{"org/chat-1", "org%2Fchat-1", "chat"} {
		if status := getJSON(t, w.url+"/v1/models/"+name, w.key, &model); status != http.StatusOK || model.ID != "org/chat-1" || model.Created == 0 {
			t.Errorf("/v1/models/%s: %d, %+v", name, status, model)
		}
	}
}

func compressedBodies(t *testing.T, w *whole) {
	body := []byte(chatWith("org/chat-1", `"max_tokens":1`))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(body); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"gzip": zipped.String(), "zstd": string(encoder.EncodeAll(body, nil))} {
		if a := w.send(t, w.key, "/v1/chat/completions", text, "Content-Encoding", name); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	bomb := encoder.EncodeAll(make([]byte, 256<<20), nil)
	if a := w.send(t, w.key, "/v1/chat/completions", string(bomb), "Content-Encoding", "zstd"); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d KB that decode to 256 MiB: %d", len(bomb)>>10, a.status)
	}
}

func leavingAborts(t *testing.T, w *whole) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	res, err := post(ctx, w.url+"/v1/chat/completions", w.key, chatWith("org/chat-1", `"stream":true,"max_tokens":5000,"ignore_eos":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	id, part := res.Header.Get("X-Request-Id"), make([]byte, 2000)
	if _, err := io.ReadFull(res.Body, part); err != nil {
		t.Fatal(err)
	}
	leave()
	left := time.Now()
	eventually(t, 100*time.Millisecond+raceSlack(), func() string {
		if outcome := arrivedAt(t, w.sound, id).Outcome; outcome != "aborted" {
			return "the engine's outcome is " + outcome
		}
		return ""
	})
	t.Logf("the engine stopped within %v", time.Since(left))
	r := w.receipt(t, id)
	if r.Outcome != "client_gone" || r.Usage.Output < 3 || r.Usage.Output > 1000 || r.Usage.InputUncached+r.Usage.InputCached == 0 || r.CostNano == 0 {
		t.Errorf("receipt %+v", r)
	}
}

func limitsAreTold(t *testing.T, w *whole) {
	key := lastWord(runWeir(t, w.dir, w.environment, "key", "create", "--tenant", w.tenant, "--rpm", "2", "--quiet"))
	body := chatWith("org/chat-1", `"max_tokens":1`)
	for want := 1; want >= 0; want-- {
		a := w.send(t, key, "/v1/chat/completions", body)
		if got := a.header.Get("X-Ratelimit-Remaining-Requests"); a.status != http.StatusOK || got != string(rune('0'+want)) || a.header.Get("X-Ratelimit-Limit-Requests") != "2" {
			t.Errorf("%d, remaining %q, want %d: %v", a.status, got, want, a.header)
		}
	}
	a := w.send(t, key, "/v1/chat/completions", body)
	if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || !strings.Contains(a.text, "rate_limit") {
		t.Errorf("the third of two: %d, %v, %s", a.status, a.header, a.text)
	}

	narrow := lastWord(runWeir(t, w.dir, w.environment, "key", "create", "--tenant", w.tenant, "--concurrency", "1", "--quiet"))
	running, err := post(t.Context(), w.url+"/v1/chat/completions", narrow, chatWith("org/chat-1", `"stream":true,"max_tokens":4000`))
	if err != nil {
		t.Fatal(err)
	}
	if a := w.send(t, narrow, "/v1/chat/completions", body); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
		t.Errorf("a second at once: %d %s", a.status, a.text)
	}
	running.Body.Close()
	eventually(t, 5*time.Second, func() string {
		if a := w.send(t, narrow, "/v1/chat/completions", body); a.status != http.StatusOK {
			return "the slot is not given back: " + a.text
		}
		return ""
	})
}

func restrictionsHold(t *testing.T, w *whole) {
	for _, row := range []struct {
		name   string
		flags  []string
		path   string
		body   string
		status int
	}{
		{"a model that is not allowed", []string{"--allow-model", "embed"}, "/v1/chat/completions", chatWith("org/chat-1", ""), http.StatusNotFound},
		{"a model that is", []string{"--allow-model", "embed"}, "/v1/embeddings", `{"model":"embed","input":"a"}`, http.StatusOK},
		{"another scope", []string{"--scope", "inference:embeddings"}, "/v1/chat/completions", chatWith("org/chat-1", ""), http.StatusForbidden},
		{"another network, whatever a header says", []string{"--allow-network", "10.0.0.0/8"}, "/v1/chat/completions", chatWith("org/chat-1", ""), http.StatusForbidden},
		{"an administrator's key", []string{"--kind", "adm"}, "/v1/chat/completions", chatWith("org/chat-1", ""), http.StatusForbidden},
	} {
		key := lastWord(runWeir(t, w.dir, w.environment, append([]string{"key", "create", "--tenant", w.tenant, "--quiet"}, row.flags...)...))
		if a := w.send(t, key, row.path, row.body, "X-Forwarded-For", "10.1.2.3"); a.status != row.status {
			t.Errorf("%s: %d, want %d: %s", row.name, a.status, row.status, a.text)
		}
	}
	brief := lastWord(runWeir(t, w.dir, w.environment, "key", "create", "--tenant", w.tenant, "--expires-in", "1s", "--quiet"))
	var expired answer
	eventually(t, 10*time.Second, func() string {
		if expired = w.send(t, brief, "/v1/chat/completions", chatWith("org/chat-1", `"max_tokens":1`)); expired.status == http.StatusOK {
			return "an expired key works"
		}
		return ""
	})
	expired = w.send(t, brief, "/v1/chat/completions", "{}") // the one before may have ended in its course
	unknown := w.send(t, brief[:len(brief)-1]+"~", "/v1/chat/completions", "{}")
	if expired.status != http.StatusUnauthorized || unknown.status != http.StatusUnauthorized || expired.text != unknown.text {
		t.Errorf("an expired and an unknown key differ: %d %s, %d %s", expired.status, expired.text, unknown.status, unknown.text)
	}
}

// breakEngine makes an engine fail from now on; with an empty fault, no more.
func breakEngine(t *testing.T, engine, fault string) {
	t.Helper()
	res, err := post(t.Context(), engine+"/admin/faults", "", fmt.Sprintf(`{"fault":%q}`, fault))
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("set fault %s: %v, %v", fault, res, err)
	}
	res.Body.Close()
}

func engineFaults(t *testing.T, w *whole) {
	const done = "data: [DONE]\n\n"
	for _, row := range []struct {
		fault, extra string
		outcome      string
		check        func(text string) bool
	}{
		{"die-mid-stream=3", "", "upstream_died", func(text string) bool {
			return strings.Contains(text, `"error"`) && !strings.Contains(text, "[DONE]")
		}},
		{"no-done", "", "upstream_died", func(text string) bool {
			return strings.Contains(text, `"error"`) && !strings.Contains(text, "[DONE]")
		}},
		{"usage-on-odd-chunks", "", "completed", func(text string) bool {
			return !strings.Contains(text, `"usage":{`) && strings.HasSuffix(text, done)
		}},
		{"usage-with-choices", `"stream_options":{"include_usage":true}`, "completed", func(text string) bool {
			return strings.Contains(text, `"usage":{`) && strings.HasSuffix(text, done)
		}},
		{"split-utf8", "", "completed", func(text string) bool {
			return !strings.Contains(text, "\uFFFD") && strings.HasSuffix(text, done)
		}},
		{"byte-at-a-time", "", "completed", func(text string) bool { return strings.HasSuffix(text, done) }},
		{"big-line=1MiB", "", "completed", func(text string) bool { return len(text) > 1<<20 && strings.HasSuffix(text, done) }},
		{"two-tools-in-one-chunk", `"tools":[{"type":"function","function":{"name":"weather"}}]`, "completed", func(text string) bool {
			return strings.HasSuffix(text, done)
		}},
	} {
		breakEngine(t, w.faulty[0], row.fault)
		breakEngine(t, w.faulty[1], row.fault)
		extra := `"stream":true,"max_tokens":20`
		if row.extra != "" {
			extra += "," + row.extra
		}
		a := w.chat(t, "flaky", extra)
		if a.status != http.StatusOK || !row.check(a.text) {
			t.Errorf("%s: %d ...%s", row.fault, a.status, a.text[max(0, len(a.text)-600):])
		}
		if r := w.receipt(t, a.id); r.Outcome != row.outcome || r.Usage.Output == 0 {
			t.Errorf("%s: receipt %+v, want %s", row.fault, r, row.outcome)
		}
	}
	breakEngine(t, w.faulty[0], "status=500")
	breakEngine(t, w.faulty[1], "")
	retried := false
	for i := 0; i < 20 && !retried; i++ { // the endpoints take turns; the circuit is not to open
		a := w.chat(t, "flaky", `"max_tokens":1`)
		if a.status != http.StatusOK {
			t.Fatalf("one engine that fails: %d %s", a.status, a.text)
		}
		retried = w.receipt(t, a.id).Attempts == 2
	}
	if !retried {
		t.Error("no request came to the engine that fails")
	}
	breakEngine(t, w.faulty[1], "status=500")
	if a := w.chat(t, "flaky", `"max_tokens":1`); a.status != http.StatusBadGateway || !strings.Contains(a.text, `"error"`) {
		t.Errorf("both fail: %d %s", a.status, a.text)
	} else if r := w.receipt(t, a.id); r.Outcome != "upstream_error" || r.Attempts != 2 || r.CostNano != 0 {
		t.Errorf("receipt %+v", r)
	}
}

func poolsPage(t *testing.T, w *whole) {
	var page struct {
		Pools map[string]map[string]json.RawMessage
	}
	if status := getJSON(t, w.ops+"/ops/v1/pools", opsToken, &page); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	for pool, members := range page.Pools {
		want := 1
		if pool == "sound" { // which claims to be verified
			want++
			if !strings.Contains(string(members["isolation"]), `"holds":true`) {
				t.Errorf("isolation of pool %s: %s", pool, members["isolation"])
			}
		}
		if members["state"] == nil || len(members) != want {
			t.Errorf("pool %s has members %v", pool, members)
		}
	}
	if len(page.Pools) != 2 {
		t.Errorf("pools %v", page.Pools)
	}
}
