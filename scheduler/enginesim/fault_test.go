package enginesim_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/scheduler/enginesim"
)

func (r rig) faulty(fault, extra string) (chunks []answer, done bool, err error) {
	r.t.Helper()
	resp := r.do(r.t.Context(), http.MethodPost, "/v1/chat/completions", helloStream+extra+`}`, "X-Sim-Fault", fault)
	return events(r.t, resp.Body)
}

func TestStreamFaults(t *testing.T) {
	t.Parallel()
	clean := instant(t).stream("/v1/chat/completions", helloStream+`}`)
	want, _, _ := joined(clean)
	for _, tt := range []struct {
		name, fault string
		ok          func(chunks []answer, text string, done bool, err error) bool
	}{
		{"die-mid-stream cuts after so many events", "die-mid-stream=3", func(chunks []answer, _ string, done bool, err error) bool {
			return len(chunks) == 3 && !done && errors.Is(err, io.ErrUnexpectedEOF)
		}},
		{"reset sends a TCP reset", "reset=2", func(chunks []answer, _ string, done bool, err error) bool {
			return len(chunks) <= 2 && !done && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF))
		}},
		{"no-done ends cleanly without the mark", "no-done", func(chunks []answer, text string, done bool, err error) bool {
			_, _, finish := joined(chunks)
			return !done && err == nil && text == want && finish == "stop"
		}},
		{"byte-at-a-time changes nothing else", "byte-at-a-time", func(_ []answer, text string, done bool, err error) bool {
			return done && err == nil && text == want
		}},
		{"malformed breaks one event", "malformed", func(_ []answer, _ string, _ bool, err error) bool {
			return err != nil && strings.Contains(err.Error(), "JSON")
		}},
		{"big-line makes one line of that size", "big-line=1MiB", func(_ []answer, text string, done bool, err error) bool {
			return done && err == nil && len(text) > 1<<20
		}},
		{"split-utf8 has characters of several bytes", "split-utf8", func(_ []answer, text string, done bool, err error) bool {
			return done && err == nil && strings.Contains(text, "Größe, 水門, \U0001f30a.")
		}},
		{"usage-with-choices puts the closing usage on the finish", "usage-with-choices", func(chunks []answer, _ string, done bool, err error) bool {
			last := chunks[len(chunks)-1]
			return done && err == nil && len(last.Choices) == 1 && last.Choices[0].FinishReason == "stop" && last.Usage != nil
		}},
		{"usage-on-odd-chunks puts running usage on some", "usage-on-odd-chunks", func(chunks []answer, _ string, done bool, err error) bool {
			with := 0
			for _, c := range chunks[:len(chunks)-1] {
				if c.Usage != nil && len(c.Choices) > 0 {
					with++
				}
			}
			return done && err == nil && with > 0 && with <= len(chunks)/2+1
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			chunks, done, err := instant(t).faulty(tt.fault, ``)
			if text, _, _ := joined(chunks); !tt.ok(chunks, text, done, err) {
				t.Errorf("%d chunks, done %v, err %v, text %.200q", len(chunks), done, err, text)
			}
		})
	}
}

func TestTwoToolsComeInOneChunk(t *testing.T) {
	t.Parallel()
	chunks, done, err := instant(t).faulty("two-tools-in-one-chunk", `,"tools":[`+weatherTool+`,`+timeTool+`]`)
	if !done || err != nil {
		t.Fatalf("done %v, err %v", done, err)
	}
	with, finish := 0, ""
	for _, chunk := range chunks {
		for _, c := range chunk.Choices {
			finish += c.FinishReason
			if n := len(c.Delta.ToolCalls); n > 0 {
				with++
				checkCalls(t, c.Delta.ToolCalls, "tool_calls", []string{"get_weather", "get_time"})
			}
		}
	}
	if with != 1 || finish != "tool_calls" {
		t.Errorf("%d chunks with calls, finish %q", with, finish)
	}
}

func TestFaultsOfTheWholeAnswer(t *testing.T) {
	t.Parallel()
	r := instant(t)
	resp := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", hello+`}`, "X-Sim-Fault", "status=429,retry-after=7")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "7" {
		t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if status, _ := r.post("/v1/chat/completions", hello+`}`, "X-Sim-Fault", "status=503"); status != http.StatusServiceUnavailable {
		t.Errorf("status = %d", status)
	}
	if status, body := r.post("/v1/chat/completions", hello+`}`, "X-Sim-Fault", "no-such"); status != http.StatusBadRequest || !strings.Contains(body, "no-such") {
		t.Errorf("unknown fault: %d %s", status, body)
	}
	for _, fault := range []string{"reset-before-headers", "die-mid-stream=1", "reset"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/chat/completions", strings.NewReader(hello+`}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Sim-Fault", fault)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the answer arrived whole", fault)
		}
	}
}

func TestSlowFirstTokenIsSlow(t *testing.T) {
	t.Parallel()
	start := time.Now()
	chunks, done, err := instant(t).faulty("slow-first-token=150ms", ``)
	if took := time.Since(start); took < 150*time.Millisecond || !done || err != nil || len(chunks) == 0 {
		t.Errorf("%d chunks after %v, err %v", len(chunks), took, err)
	}
}

func TestAStallLastsUntilTheCallerLeaves(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, TTFT: time.Millisecond, ITL: time.Millisecond})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp := r.do(ctx, http.MethodPost, "/v1/chat/completions", helloStream+`}`, "X-Sim-Fault", "stall=2")
	read := make(chan int)
	go func() {
		chunks, _, _ := events(t, resp.Body)
		read <- len(chunks)
	}()
	until(t, "the stalled answer is made", func() bool { return r.Stats().Finished == 1 })
	select {
	case n := <-read:
		t.Fatalf("the stream ended by itself after %d chunks", n)
	case <-time.After(50 * time.Millisecond):
	}
	leave()
	if n := <-read; n != 2 {
		t.Errorf("%d chunks before the stall, want 2", n)
	}
	until(t, "the request ends", func() bool { return r.Requests()[0].Outcome == "aborted" })
}

func TestACallerWhoLeavesStopsTheEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		stream     bool
	}{
		{"from a stream", helloStream + `,"max_tokens":5000,"ignore_eos":true}`, true},
		{"while waiting for a document", hello + `,"max_tokens":5000,"ignore_eos":true}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ITL: 20 * time.Millisecond})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/chat/completions", strings.NewReader(tt.body))
				req.Header.Set("Content-Type", "application/json")
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}()
			until(t, "some tokens are made", func() bool { return r.Stats().GeneratedTokens >= 3 })
			atLeave := r.Stats().GeneratedTokens
			leave()
			<-ended
			until(t, "the slot is free", func() bool { return r.Stats().Aborted == 1 })
			s := r.Stats()
			if s.Running != 0 || s.KVUsage != 0 || s.GeneratedTokens > atLeave+3 {
				t.Errorf("left at %d tokens, then %+v", atLeave, s)
			}
			until(t, "the request is booked", func() bool { return r.Requests()[0].Outcome == "aborted" })
			if got := r.Requests()[0].Generated; got != s.GeneratedTokens {
				t.Errorf("the request says %d tokens, the engine %d", got, s.GeneratedTokens)
			}
		})
	}
}

func TestAdminFaultsHoldForAsManyRequestsAsSaid(t *testing.T) {
	t.Parallel()
	r := instant(t)
	status := func() int {
		s, _ := r.post("/v1/chat/completions", hello+`}`)
		return s
	}
	if s, body := r.post("/admin/faults", `{"fault":"status=500","requests":2}`); s != http.StatusOK {
		t.Fatalf("%d %s", s, body)
	}
	if got := []int{status(), status(), status()}; got[0] != 500 || got[1] != 500 || got[2] != 200 {
		t.Errorf("statuses = %v, want two faults", got)
	}
	_, _ = r.post("/admin/faults", `{"fault":"status=503"}`)
	if got := []int{status(), status(), status()}; got[2] != 503 {
		t.Errorf("statuses = %v, want faults until reset", got)
	}
	if _, body := r.get("/admin/faults"); !strings.Contains(body, `"fault":"status=503"`) {
		t.Errorf("state = %s", body)
	}
	_ = r.do(t.Context(), http.MethodDelete, "/admin/faults", "")
	if got := status(); got != 200 {
		t.Errorf("after reset: %d", got)
	}
	if s, _ := r.post("/admin/faults", `{"fault":"nonsense"}`); s != http.StatusBadRequest {
		t.Errorf("nonsense: %d", s)
	}
}

func TestHealthIsASwitch(t *testing.T) {
	t.Parallel()
	r := instant(t)
	for _, path := range []string{"/health", "/ping"} {
		if status, _ := r.get(path); status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
	}
	_, _ = r.post("/admin/faults", `{"healthy":false}`)
	if status, _ := r.get("/health"); status != http.StatusServiceUnavailable {
		t.Errorf("sick: %d", status)
	}
	if status, _ := r.post("/v1/chat/completions", hello+`}`); status != http.StatusOK {
		t.Errorf("a sick server still answers, got %d", status)
	}
	r.SetHealthy(true)
	if status, _ := r.get("/health"); status != http.StatusOK {
		t.Errorf("well again: %d", status)
	}
}

func TestRequestsShowWhatArrived(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{ZeroLatency: true, KeepRequests: 2, Models: []string{"sim-chat"}})
	for _, id := range []string{"a", "b", "c"} {
		r.ok("/v1/chat/completions", hello+`,"user":"`+id+`"}`, "X-Request-Id", id)
	}
	got := r.Requests()
	if len(got) != 2 || got[1].Header.Get("X-Request-Id") != "c" || !strings.Contains(got[1].Text, `"user":"c"`) ||
		got[1].Outcome != "completed" || got[1].Generated < 1 || got[1].Path != "/v1/chat/completions" {
		t.Errorf("requests = %+v", got)
	}
	if _, body := r.get("/admin/requests?last=1"); !strings.Contains(body, `"requests":3`) || strings.Contains(body, `\"user\":\"b\"`) {
		t.Errorf("admin view = %s", body)
	}
	big := `{"messages":[{"role":"user","content":"` + strings.Repeat("a", 80<<10) + `"}]}`
	r.ok("/v1/chat/completions", big)
	if got := r.Requests(); len(got[1].Body) != 64<<10 {
		t.Errorf("kept %d bytes", len(got[1].Body))
	}
}

func TestAClosedEngineRefusesAndCutsStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ITL: time.Millisecond})
	resp := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", helloStream+`,"max_tokens":20000,"ignore_eos":true}`)
	until(t, "it runs", func() bool { return r.Stats().GeneratedTokens > 0 })
	r.Close()
	if _, done, err := events(t, resp.Body); done || err == nil {
		t.Errorf("done %v, err %v", done, err)
	}
	if status, _ := r.post("/v1/chat/completions", hello+`}`); status != http.StatusServiceUnavailable {
		t.Errorf("status = %d", status)
	}
}
