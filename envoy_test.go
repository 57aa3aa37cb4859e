package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// envoyed is Envoy before simulated engines, with `weir scheduler` beside it:
// the files of deploy/envoy at free addresses.
type envoyed struct {
	url, ops string
	dir      string
	sched    *process
	settings []string
	args     []string
}

// startEnvoy starts all of it, with one place at each of two engines. `make
// test-envoy` installs Envoy and sets WEIR_TEST_ENVOY.
func startEnvoy(t *testing.T) *envoyed {
	t.Helper()
	program := os.Getenv("WEIR_TEST_ENVOY")
	if program == "" {
		t.Skip("needs Envoy: make test-envoy")
	}
	e := &envoyed{dir: t.TempDir(), ops: freeAddress(t)}
	listen, public, admin := freeAddress(t), freeAddress(t), freeAddress(t)
	pools := readFile(t, "deploy/envoy/pools.yaml")
	pools = strings.NewReplacer("http://127.0.0.1:8001", startEngine(t), "http://127.0.0.1:8002", startEngine(t),
		"max_concurrency: 64", "max_concurrency: 1", "max_queued: 2000", "max_queued: 4", "engine: vllm", "engine: sim").Replace(pools)
	writeTo(t, filepath.Join(e.dir, "pools.yaml"), pools)
	port := func(address string) string { return "port_value: " + address[strings.LastIndex(address, ":")+1:] }
	conf := strings.NewReplacer("port_value: 8080", port(public), "port_value: 9901", port(admin), "port_value: 9002", port(listen),
		"port_value: 9012", port(freeAddress(t))).Replace(readFile(t, "deploy/envoy/envoy.yaml"))
	writeTo(t, filepath.Join(e.dir, "envoy.yaml"), conf)

	e.settings = []string{"WEIR_SCHEDULER_LISTEN=" + listen, "WEIR_OPS_ADDR=" + e.ops, "WEIR_OPS_TOKEN=" + opsToken, "WEIR_DRAIN_TIMEOUT=1s"}
	e.args = []string{"scheduler", "--catalogue", filepath.Join(e.dir, "pools.yaml")}
	e.sched = startWeir(t, e.dir, e.settings, e.args...)
	waitFor(t, "http://"+e.ops+"/readyz")
	envoy := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-c", filepath.Join(e.dir, "envoy.yaml"), "--use-dynamic-base-id", "-l", "error")
	envoy.Stdout, envoy.Stderr = t.Output(), t.Output()
	envoy.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = envoy.Process.Kill()
		_ = envoy.Wait()
	})
	e.url = "http://" + public
	e.answers(t)
	return e
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// chat has the headers besides.
func (e *envoyed) chat(ctx context.Context, tokens int, stream bool, headers ...string) (*http.Response, error) {
	body := strings.Replace(chatBody(tokens, stream), `{"model"`, `{"ignore_eos":true,"model"`, 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(req)
}

// rests waits until so many run and wait.
func (e *envoyed) rests(t *testing.T, live, queued int) {
	t.Helper()
	eventually(t, 20*time.Second, func() string {
		var page struct {
			Pools map[string]struct {
				State struct {
					Live   int `json:"live"`
					Queued int `json:"queued"`
				} `json:"state"`
			} `json:"pools"`
		}
		getJSON(t, "http://"+e.ops+"/ops/v1/pools", opsToken, &page)
		if s := page.Pools["main"].State; s.Live != live || s.Queued != queued {
			text, _ := json.Marshal(s)
			return string(text)
		}
		return ""
	})
}

func TestEnvoyIsDrivenByTheScheduler(t *testing.T) {
	t.Parallel()
	e := startEnvoy(t)
	aLongPromptComesThrough(t, e)
	envoysRequestsWaitInOrder(t, e)
	nothingPassesTheScheduler(t, e)
}

// aLongPromptComesThrough has more than one piece each way.
func aLongPromptComesThrough(t *testing.T, e *envoyed) {
	t.Helper()
	prompt := strings.Repeat("The weir holds the river back. ", 4000)
	res, err := post(t.Context(), e.url+"/v1/chat/completions", "", `{"model":"sim-chat","max_tokens":2,"messages":[{"role":"user","content":"`+prompt+`"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"prompt_tokens"`) || res.Header.Get("X-Llm-D-Flow-Queue-Duration-Ms") == "" {
		t.Errorf("a long prompt: %v, %s, headers %v: %.300s", err, res.Status, res.Header, answer)
	}
	e.rests(t, 0, 0)
}

// fill has both places of the pool taken, each until its function is called.
func (e *envoyed) fill(t *testing.T) (leave [2]context.CancelFunc) {
	t.Helper()
	for i := range leave {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		leave[i] = cancel
		stream, err := e.chat(ctx, 20_000, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stream.Body.Close() })
		if lines := bufio.NewScanner(stream.Body); !lines.Scan() {
			t.Fatalf("a stream ended before its first line: %s", stream.Status)
		}
	}
	e.rests(t, 2, 0)
	return leave
}

// envoysRequestsWaitInOrder fills the pool: what comes then waits, the higher
// band before the one that came first, and leaves when its caller does.
func envoysRequestsWaitInOrder(t *testing.T, e *envoyed) {
	t.Helper()
	leave := e.fill(t)
	order := make(chan string, 2)
	var all sync.WaitGroup
	for i, band := range []string{"batch", "interactive"} {
		all.Go(func() {
			res, err := e.chat(t.Context(), 40, false, "x-llm-d-inference-objective", band, "x-llm-d-inference-fairness-id", "t")
			if err != nil {
				t.Error(err)
				return
			}
			order <- band
			_ = res.Body.Close()
		})
		e.rests(t, 2, i+1)
	}
	gone, cancel := context.WithCancel(t.Context())
	all.Go(func() {
		if res, err := e.chat(gone, 1, false); err == nil {
			_ = res.Body.Close()
			t.Error("who left the queue was answered")
		}
	})
	e.rests(t, 2, 3)
	cancel()
	e.rests(t, 2, 2)
	e.isFull(t, &all)
	leave[0]() // one place, where one after the other goes
	all.Wait()
	leave[1]()
	if first := <-order; first != "interactive" {
		t.Errorf("%s went first, want the higher band", first)
	}
	e.rests(t, 0, 0)
}

// isFull adds two to those who wait, which are as many as may.
func (e *envoyed) isFull(t *testing.T, all *sync.WaitGroup) {
	t.Helper()
	for range 2 {
		all.Go(func() {
			if res, err := e.chat(t.Context(), 1, false); err == nil {
				_ = res.Body.Close()
			}
		})
	}
	e.rests(t, 2, 4)
	res, err := e.chat(t.Context(), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-saturated" || res.Header.Get("Retry-After") == "" {
		t.Errorf("a full queue: %s, headers %v", res.Status, res.Header)
	}
}

// nothingPassesTheScheduler that isn't there; when it is back, all is well.
func nothingPassesTheScheduler(t *testing.T, e *envoyed) {
	t.Helper()
	e.sched.stop(t, syscall.SIGTERM)
	res, err := e.chat(t.Context(), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode < http.StatusInternalServerError {
		t.Errorf("without a scheduler: %s", res.Status)
	}
	e.sched = startWeir(t, e.dir, e.settings, e.args...)
	e.answers(t)
}

// answers waits until a request comes through.
func (e *envoyed) answers(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		res, err := e.chat(t.Context(), 1, false)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return res.Status
		}
		return ""
	})
}
