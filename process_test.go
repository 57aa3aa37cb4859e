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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a running weir command: the test binary itself under that name.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

// startWeir runs `weir args...` in dir with the environment's extra lines. The
// test's end kills what is still running.
func startWeir(t *testing.T, dir string, environment []string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{done: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), exe, args...)
	p.cmd.Args[0] = "weir"
	p.cmd.Dir = dir
	p.cmd.Env = append(cleanEnvironment(), environment...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	reader, writer := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.collect(reader)
	go func() {
		_ = p.cmd.Wait()
		_ = writer.Close()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("output of weir %s:\n%s", strings.Join(args, " "), p.output())
		}
	})
	return p
}

// cleanEnvironment is the test's own without settings of a weir around it.
func cleanEnvironment() []string {
	var out []string
	for _, line := range os.Environ() {
		if !strings.HasPrefix(line, "WEIR_") {
			out = append(out, line)
		}
	}
	return out
}

func (p *process) collect(r io.Reader) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		p.mu.Lock()
		p.out.WriteString(line)
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// stop sends the signal and waits for the process to end.
func (p *process) stop(t *testing.T, s syscall.Signal) {
	t.Helper()
	p.signal(s)
	select {
	case <-p.done:
	case <-time.After(60 * time.Second):
		t.Fatalf("weir did not stop on %v:\n%s", s, p.output())
	}
}

// eventually polls until the condition holds; what it returns names what is
// still missing.
func eventually(t *testing.T, within time.Duration, missing func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		what := missing()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", within, what)
		}
		<-tick.C
	}
}

// runWeir runs a command to its end and returns its standard output.
func runWeir(t *testing.T, dir string, environment []string, args ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Args[0] = "weir"
	cmd.Dir = dir
	cmd.Env = append(cleanEnvironment(), environment...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("weir %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// dev is a running `weir dev` with what it wrote to dev.env.
type dev struct {
	*process
	dir string
	url string
	key string
}

func startDev(t *testing.T, dir string, args ...string) *dev {
	t.Helper()
	return startDevIn(t, dir, nil, args...)
}

func startDevIn(t *testing.T, dir string, environment []string, args ...string) *dev {
	t.Helper()
	envFile := filepath.Join(dir, ".weir", "dev.env")
	_ = os.Remove(envFile)
	p := startWeir(t, dir, environment, append([]string{"dev", "--port", "0"}, args...)...)
	d := &dev{process: p, dir: dir}
	eventually(t, 120*time.Second, func() string {
		select {
		case <-p.done:
			t.Fatalf("weir dev ended:\n%s", p.output())
		default:
		}
		values := readEnvFile(envFile)
		d.url, d.key = values["WEIR_URL"], values["WEIR_API_KEY"]
		if d.url == "" || d.key == "" || !strings.Contains(p.output(), "Ctrl-C stops") { // the last line
			return "not ready; so far:\n" + p.output()
		}
		return ""
	})
	return d
}

// environment is what dev.env would set in a shell.
func (d *dev) environment() []string {
	var lines []string
	for name, value := range readEnvFile(filepath.Join(d.dir, ".weir", "dev.env")) {
		lines = append(lines, name+"="+value)
	}
	return lines
}

func readEnvFile(path string) map[string]string {
	values := map[string]string{}
	raw, err := os.ReadFile(path)
	if err != nil {
		return values
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "="); ok {
			values[name] = strings.Trim(value, `"'`)
		}
	}
	return values
}

// post sends a JSON body with the key and returns the answer, to be closed.
func post(ctx context.Context, url, key, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(req)
}

// getJSON reads a document with the key into v and returns the status.
func getJSON(t *testing.T, url, key string, v any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		t.Fatalf("%s: %s: %v", url, res.Status, err)
	}
	return res.StatusCode
}

func chatBody(maxTokens int, stream bool) string {
	return fmt.Sprintf(`{"model":"sim-chat","max_tokens":%d,"stream":%t,"messages":[{"role":"user","content":"Tell me a story."}]}`, maxTokens, stream)
}

func writeTo(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// raceSlack is what the race detector and a busy machine may add to a time
// that the product promises.
func raceSlack() time.Duration { return time.Second }
