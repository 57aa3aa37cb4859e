package enginesim_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/scheduler/enginesim"
)

// rig is an engine behind a real HTTP server.
type rig struct {
	*enginesim.Engine
	t   *testing.T
	url string
}

func newRig(t *testing.T, cfg enginesim.Config) rig {
	t.Helper()
	e := enginesim.New(cfg)
	srv := httptest.NewServer(e)
	t.Cleanup(func() {
		e.Close()
		srv.Close()
	})
	return rig{Engine: e, t: t, url: srv.URL}
}

// instant is a rig that never waits.
func instant(t *testing.T) rig {
	t.Helper()
	return newRig(t, enginesim.Config{ZeroLatency: true, Models: []string{"sim-chat", "alias"}})
}

func (r rig) do(ctx context.Context, method, path, body string, header ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func (r rig) post(path, body string, header ...string) (int, string) {
	r.t.Helper()
	resp := r.do(r.t.Context(), http.MethodPost, path, body, header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("read answer: %v", err)
	}
	return resp.StatusCode, string(b)
}

func (r rig) get(path string) (int, string) {
	r.t.Helper()
	resp := r.do(r.t.Context(), http.MethodGet, path, "")
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// ok posts and decodes an answer that must be a 200.
func (r rig) ok(path, body string, header ...string) answer {
	r.t.Helper()
	status, text := r.post(path, body, header...)
	if status != http.StatusOK {
		r.t.Fatalf("status %d: %s", status, text)
	}
	return decode(r.t, text)
}

// answer is what the tests look at, of chat and completions, whole or in chunks.
type answer struct {
	ID                string   `json:"id"`
	Object            string   `json:"object"`
	Model             string   `json:"model"`
	SystemFingerprint string   `json:"system_fingerprint"`
	Choices           []choice `json:"choices"`
	Usage             *usage   `json:"usage"`
}

type choice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Message      delta           `json:"message"`
	Delta        delta           `json:"delta"`
	FinishReason string          `json:"finish_reason"`
	Logprobs     json.RawMessage `json:"logprobs"`
}

type delta struct {
	Role             string     `json:"role"`
	Content          string     `json:"content"`
	Reasoning        string     `json:"reasoning"`
	ReasoningContent string     `json:"reasoning_content"`
	ToolCalls        []toolCall `json:"tool_calls"`
}

type toolCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Output *struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func (u *usage) cached() int {
	if u.Details == nil {
		return 0
	}
	return u.Details.Cached
}

func decode(t *testing.T, text string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("decode %q: %v", text, err)
	}
	return a
}

// events reads a stream to its end: the chunks, whether [DONE] came, and the
// error that ended the reading, nil at a clean end.
func events(t *testing.T, body io.Reader) (chunks []answer, done bool, err error) {
	t.Helper()
	r := bufio.NewReaderSize(body, 1<<16)
	for {
		line, readErr := r.ReadBytes('\n')
		data, isData := bytes.CutPrefix(bytes.TrimRight(line, "\n"), []byte("data: "))
		switch {
		case string(data) == "[DONE]":
			done = true
		case isData && readErr == nil:
			var a answer
			if err := json.Unmarshal(data, &a); err != nil {
				return chunks, done, err
			}
			chunks = append(chunks, a)
		}
		if errors.Is(readErr, io.EOF) {
			return chunks, done, nil
		}
		if readErr != nil {
			return chunks, done, readErr
		}
	}
}

// stream posts a request and reads all its events, which must end well.
func (r rig) stream(path, body string) []answer {
	r.t.Helper()
	resp := r.do(r.t.Context(), http.MethodPost, path, body)
	if resp.StatusCode != http.StatusOK {
		r.t.Fatalf("status %d", resp.StatusCode)
	}
	chunks, done, err := events(r.t, resp.Body)
	if err != nil || !done {
		r.t.Fatalf("stream: done=%v err=%v", done, err)
	}
	return chunks
}

// joined is the text of a stream's first choice.
func joined(chunks []answer) (content, reasoning, finish string) {
	for _, a := range chunks {
		for _, c := range a.Choices {
			if c.Index == 0 {
				content += c.Delta.Content + c.Text
				reasoning += c.Delta.Reasoning
				finish += c.FinishReason
			}
		}
	}
	return content, reasoning, finish
}

// until waits for a condition of the engine, at most ten seconds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		}
	}
}

const (
	hello       = `{"model":"sim-chat","messages":[{"role":"user","content":"Hello there"}]`
	helloStream = hello + `,"stream":true,"stream_options":{"include_usage":true}`
)

func TestSaysThatItIsSimulated(t *testing.T) {
	t.Parallel()
	r := instant(t)
	resp := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", hello+`}`, "X-Request-Id", "abc.1")
	b, _ := io.ReadAll(resp.Body)
	a := decode(t, string(b))
	if got := resp.Header.Get("Server"); !strings.Contains(got, "simulated") {
		t.Errorf("Server = %q", got)
	}
	if got := resp.Header.Get("X-Request-Id"); got != "abc.1" {
		t.Errorf("X-Request-Id = %q", got)
	}
	if a.ID != "chatcmpl-abc.1" || a.SystemFingerprint != "sim" || a.Object != "chat.completion" || a.Model != "sim-chat" {
		t.Errorf("answer = %+v", a)
	}
	if !strings.HasPrefix(a.Choices[0].Message.Content, "Simulated answer.") {
		t.Errorf("content = %q", a.Choices[0].Message.Content)
	}
	if _, body := r.get("/version"); !strings.Contains(body, `"simulated":true`) {
		t.Errorf("version = %s", body)
	}
}

func TestStreamAndDocumentAreTheSameAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, path, body string }{
		{"chat", "/v1/chat/completions", hello},
		{"chat with reasoning", "/v1/chat/completions", hello + `,"reasoning_effort":"low"`},
		{"chat cut by max_tokens", "/v1/chat/completions", hello + `,"max_tokens":7`},
		{"chat with json", "/v1/chat/completions", hello + `,"response_format":{"type":"json_object"}`},
		{"completion", "/v1/completions", `{"model":"sim-chat","prompt":"Once upon","max_tokens":40`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			whole := instant(t).ok(tt.path, tt.body+`}`)
			chunks := instant(t).stream(tt.path, tt.body+`,"stream":true,"stream_options":{"include_usage":true}}`)
			content, reasoning, finish := joined(chunks)
			c := whole.Choices[0]
			if want := c.Message.Content + c.Text; content != want || content == "" {
				t.Errorf("content differs:\nstream   %q\ndocument %q", content, want)
			}
			if reasoning != c.Message.Reasoning || finish != c.FinishReason {
				t.Errorf("stream ends %q/%q, document %q/%q", reasoning, finish, c.Message.Reasoning, c.FinishReason)
			}
			last := chunks[len(chunks)-1]
			if len(last.Choices) != 0 || last.Usage == nil {
				t.Fatalf("last chunk = %+v, want usage without choices", last)
			}
			if last.Usage.Completion != whole.Usage.Completion || last.Usage.Prompt != whole.Usage.Prompt {
				t.Errorf("usage: stream %+v, document %+v", last.Usage, whole.Usage)
			}
			if whole.Usage.Total != whole.Usage.Prompt+whole.Usage.Completion {
				t.Errorf("total = %+v", whole.Usage)
			}
		})
	}
}

func TestSameSeedAndRequestGiveTheSameText(t *testing.T) {
	t.Parallel()
	text := func(seed uint64, body string) string {
		r := newRig(t, enginesim.Config{ZeroLatency: true, Seed: seed, Models: []string{"sim-chat"}})
		return r.ok("/v1/chat/completions", body).Choices[0].Message.Content
	}
	base := text(1, hello+`}`)
	if again := text(1, hello+`,"cache_salt":"other","temperature":0.3}`); again != base {
		t.Errorf("same seed and prompt:\n%q\n%q", base, again)
	}
	for name, other := range map[string]string{
		"engine seed":  text(2, hello+`}`),
		"request seed": text(1, hello+`,"seed":7}`),
		"prompt":       text(1, `{"messages":[{"role":"user","content":"Hello There"}]}`),
	} {
		if other == base {
			t.Errorf("another %s gave the same text", name)
		}
	}
}

func TestLengthIsAsAskedFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, extra, finish string
		min, max            int
	}{
		{"natural end", ``, "stop", 12, 120},
		{"max_tokens cuts", `,"max_tokens":5`, "length", 5, 5},
		{"max_completion_tokens wins", `,"max_tokens":50,"max_completion_tokens":4`, "length", 4, 4},
		{"min_tokens extends", `,"min_tokens":300`, "stop", 300, 340},
		{"ignore_eos fills up", `,"max_tokens":257,"ignore_eos":true`, "length", 257, 257},
		{"one token", `,"max_tokens":1`, "length", 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := instant(t)
			a := r.ok("/v1/chat/completions", hello+tt.extra+`}`)
			if n := a.Usage.Completion; n < tt.min || n > tt.max || a.Choices[0].FinishReason != tt.finish {
				t.Errorf("%d tokens, finish %q; want %d to %d, %q", n, a.Choices[0].FinishReason, tt.min, tt.max, tt.finish)
			}
			if s := r.Stats(); s.GeneratedTokens != a.Usage.Completion || s.Finished != 1 || s.Running != 0 || s.KVUsage != 0 {
				t.Errorf("stats = %+v", s)
			}
		})
	}
}

func TestStopEndsBeforeTheStopString(t *testing.T) {
	t.Parallel()
	r := instant(t)
	full := r.ok("/v1/chat/completions", hello+`}`).Choices[0].Message.Content
	stop := full[25:32] // within the first sentence, across pieces
	want, _, _ := strings.Cut(full, stop)
	body, _ := json.Marshal([]string{"never occurs", stop})
	a := r.ok("/v1/chat/completions", hello+`,"stop":`+string(body)+`}`)
	if got := a.Choices[0].Message.Content; got != want || a.Choices[0].FinishReason != "stop" {
		t.Errorf("content = %q finish %q, want %q", got, a.Choices[0].FinishReason, want)
	}
	one, _ := json.Marshal(stop)
	a = r.ok("/v1/chat/completions", hello+`,"include_stop_str_in_output":true,"stop":`+string(one)+`}`)
	if got := a.Choices[0].Message.Content; got != want+stop {
		t.Errorf("included: %q, want %q", got, want+stop)
	}
	content, _, _ := joined(r.stream("/v1/chat/completions", helloStream+`,"stop":`+string(one)+`}`))
	if content != want {
		t.Errorf("streamed: %q, want %q", content, want)
	}
}

func TestChoicesAreCountedAndDiffer(t *testing.T) {
	t.Parallel()
	r := instant(t)
	a := r.ok("/v1/chat/completions", hello+`,"n":3,"max_tokens":30,"ignore_eos":true}`)
	if len(a.Choices) != 3 || a.Usage.Completion != 90 {
		t.Fatalf("%d choices, usage %+v", len(a.Choices), a.Usage)
	}
	if a.Choices[0].Message.Content == a.Choices[1].Message.Content {
		t.Error("two choices have the same text")
	}
	chunks := r.stream("/v1/chat/completions", helloStream+`,"n":3,"max_tokens":30,"ignore_eos":true}`)
	finishes := map[int]string{}
	for _, chunk := range chunks {
		for _, c := range chunk.Choices {
			finishes[c.Index] += c.FinishReason
		}
	}
	if len(finishes) != 3 || finishes[0] != "length" || finishes[2] != "length" {
		t.Errorf("finish reasons = %v", finishes)
	}
	if u := chunks[len(chunks)-1].Usage; u.Completion != 90 {
		t.Errorf("usage = %+v", u)
	}
	b := r.ok("/v1/completions", `{"prompt":["one","two"],"n":2,"max_tokens":4}`)
	if len(b.Choices) != 4 || b.Choices[3].Index != 3 || b.Usage.Completion != 16 {
		t.Errorf("completions: %+v usage %+v", b.Choices, b.Usage)
	}
}

func TestContinuousUsageCountsEachChunk(t *testing.T) {
	t.Parallel()
	r := instant(t)
	chunks := r.stream("/v1/chat/completions",
		hello+`,"max_tokens":9,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	seen := 0
	for _, c := range chunks[1:] {
		if c.Usage == nil {
			t.Fatalf("a chunk without usage: %+v", c)
		}
		if c.Usage.Completion < seen || c.Usage.Completion > seen+1 {
			t.Errorf("completion_tokens went from %d to %d", seen, c.Usage.Completion)
		}
		seen = c.Usage.Completion
	}
	if seen != 9 {
		t.Errorf("ended at %d tokens", seen)
	}
	plain := r.stream("/v1/chat/completions", hello+`,"stream":true}`)
	for _, c := range plain {
		if c.Usage != nil {
			t.Errorf("usage that nobody asked for: %+v", c)
		}
	}
}

func TestReasoningIsApartAndCounted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		field       enginesim.ReasoningField
		always      bool
		extra       string
		vllm, older bool // which field is filled
		counted     bool
	}{
		{"asked for by effort", "", false, `,"reasoning_effort":"high"`, true, false, true},
		{"asked for by template", "", false, `,"chat_template_kwargs":{"enable_thinking":true}`, true, false, true},
		{"older field", enginesim.FieldReasoningContent, true, ``, false, true, true},
		{"both fields", enginesim.FieldBoth, true, ``, true, true, true},
		{"hidden but counted", "", true, `,"include_reasoning":false`, false, false, true},
		{"switched off", "", true, `,"reasoning_effort":"none"`, false, false, false},
		{"default", "", false, ``, false, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, enginesim.Config{ZeroLatency: true, Models: []string{"sim-chat"}, Reasoning: tt.always, ReasoningField: tt.field})
			a := r.ok("/v1/chat/completions", hello+tt.extra+`}`)
			m := a.Choices[0].Message
			if (m.Reasoning != "") != tt.vllm || (m.ReasoningContent != "") != tt.older || m.Content == "" {
				t.Errorf("message = %+v", m)
			}
			if (a.Usage.Output != nil) != tt.counted || tt.counted && (a.Usage.Output.Reasoning < 1 || a.Usage.Output.Reasoning >= a.Usage.Completion) {
				t.Errorf("usage = %+v", a.Usage)
			}
		})
	}
}
