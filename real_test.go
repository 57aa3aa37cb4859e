package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestRealModel is the main job with a language model that really computes:
// `make test-real` installs it and sets WEIR_TEST_REAL_MODEL.
func TestRealModel(t *testing.T) {
	t.Parallel()
	if os.Getenv("WEIR_TEST_REAL_MODEL") == "" {
		t.Skip("needs a real model: make test-real")
	}
	engine := startRealEngine(t)
	d := startDev(t, t.TempDir(), "--endpoint", engine)

	long := strings.Repeat("The weir holds the river back and lets it through in order. ", 40)
	first, _ := realChat(t, d, long, `{"role":"user","content":"What does it do?"}`)
	text, usage := realChat(t, d, long, fmt.Sprintf(`{"role":"user","content":"What does it do?"},{"role":"assistant","content":%s},{"role":"user","content":"And then?"}`, quote(t, first)))
	if text == "" || usage.Prompt == 0 || usage.Completion == 0 {
		t.Fatalf("second turn: %q, %+v", text, usage)
	}
	if usage.Details.Cached < usage.Prompt/2 {
		t.Errorf("second turn: %d of %d prompt tokens came from the cache", usage.Details.Cached, usage.Prompt)
	}
	receipts := runWeir(t, d.dir, d.environment(), "receipts", "--json")
	if !strings.Contains(receipts, `"completed"`) || strings.Count(receipts, "\n") < 2 {
		t.Errorf("receipts:\n%s", receipts)
	}
	leavingStopsTheEngine(t, d, engine)
}

type realUsage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// startRealEngine installs the model, if it isn't there, and serves it.
func startRealEngine(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", realInstaller, ".cache/realmodel").Output()
	if err != nil {
		t.Fatalf("install: %v", err)
	}
	paths := map[string]string{}
	for line := range strings.SplitSeq(string(out), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok {
			paths[name] = value
		}
	}
	port, err := freePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), paths["server"], realArguments(paths["model"], port)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	engine, err := startChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		engine.stop()
		if t.Failed() {
			t.Logf("engine's log:\n%s", log.String())
		}
	})
	url := "http://127.0.0.1:" + port
	waitFor(t, url+"/health")
	return url
}

// realChat streams one chat and returns its text and closing usage.
func realChat(t *testing.T, d *dev, system, turns string) (string, realUsage) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"real-chat","stream":true,"stream_options":{"include_usage":true},"max_tokens":32,"temperature":0,
		"messages":[{"role":"system","content":%s},%s]}`, quote(t, system), turns)
	res, err := post(t.Context(), d.url+"/v1/chat/completions", d.key, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var (
		text  strings.Builder
		usage realUsage
		done  bool
	)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if done = data == "[DONE]"; done {
			break
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Usage *realUsage `json:"usage"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		for _, c := range chunk.Choices {
			text.WriteString(c.Delta.Content)
		}
		if chunk.Usage != nil {
			usage = *chunk.Usage
		}
	}
	if res.StatusCode != http.StatusOK || !done {
		t.Fatalf("%s, whole: %v", res.Status, done)
	}
	return text.String(), usage
}

func quote(t *testing.T, s string) string {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// leavingStopsTheEngine leaves a long answer after its first chunk: the
// engine's own count of what it is processing must fall to none long before
// the answer would have been over.
func leavingStopsTheEngine(t *testing.T, d *dev, engine string) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	res, err := post(ctx, d.url+"/v1/chat/completions", d.key,
		`{"model":"real-chat","stream":true,"max_tokens":1900,"ignore_eos":true,"messages":[{"role":"user","content":"Count up from one."}]}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAtLeast(res.Body, make([]byte, 64), 64); err != nil {
		t.Fatal(err)
	}
	if n := processing(t, engine); n != "1" {
		t.Fatalf("the engine processes %s requests while one streams", n)
	}
	leave()
	eventually(t, 2*time.Second, func() string {
		if n := processing(t, engine); n != "0" {
			return "the engine still processes " + n
		}
		return ""
	})
}

func processing(t *testing.T, engine string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, engine+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "llamacpp:requests_processing "); ok {
			return v
		}
	}
	t.Fatal("no metric llamacpp:requests_processing")
	return ""
}
