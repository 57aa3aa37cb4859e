package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// curlLine finds the printed command and runs it in a shell, as a person would.
func curlLine(t *testing.T, d *dev) string {
	t.Helper()
	_, rest, found := strings.Cut(d.output(), "curl ")
	if !found {
		t.Fatalf("no curl line printed:\n%s", d.output())
	}
	command, _, _ := strings.Cut("curl -sS "+rest, "\n\n")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir = d.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", command, err, out)
	}
	return string(out)
}

func TestDevStartsServesStopsAndRemembers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := startDev(t, dir)

	var answer struct {
		Choices []struct{} `json:"choices"`
		Usage   struct {
			TotalTokens int `json:"total_tokens"`
		} `json:"usage"`
	}
	if out := curlLine(t, first); json.Unmarshal([]byte(out), &answer) != nil || len(answer.Choices) == 0 || answer.Usage.TotalTokens == 0 {
		t.Fatalf("the printed curl line answered %s", out)
	}
	if info, err := os.Stat(filepath.Join(dir, ".weir", "dev.env")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("dev.env: %v, %v", info.Mode(), err)
	}
	first.stop(t, syscall.SIGINT)
	if code := first.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("Ctrl-C ended with %d:\n%s", code, first.output())
	}
	noProcessUnder(t, dir)

	second := startDevIn(t, dir, first.environment()) // from a shell that has read dev.env
	if second.key != first.key {
		t.Error("the second run made another key")
	}
	curlLine(t, second)
	second.stop(t, syscall.SIGTERM)
	noProcessUnder(t, dir)
}

func TestDevEndsAndSaysSoWhenItsPostgresDies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := startDev(t, dir)
	raw, err := os.ReadFile(filepath.Join(dir, ".weir", "postgres", "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.done:
	case <-time.After(30 * time.Second):
		t.Fatal("weir dev runs on without its database")
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(d.output(), "the private Postgres has ended") {
		t.Errorf("exit %d:\n%s", code, d.output())
	}
	noProcessUnder(t, dir)
}

// A model server of one's own is asked for its models, and they are on sale
// under their own names.
func TestDevPutsOnesOwnModelServerBehindTheGateway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	engine := freeAddress(t)
	startWeir(t, dir, nil, "sim", "--listen", engine, "--model", "org/my-model")
	waitFor(t, "http://"+engine+"/health")
	d := startDev(t, dir, "--endpoint", engine+"/v1/")

	var model struct{ ID string }
	if status := getJSON(t, d.url+"/v1/models/org/my-model", d.key, &model); status != http.StatusOK || model.ID != "org/my-model" {
		t.Errorf("the model by its name: %d, %+v", status, model)
	}
	if out := curlLine(t, d); !strings.Contains(out, `"model":"org/my-model"`) {
		t.Errorf("the printed curl line answered %s", out)
	}
	d.stop(t, syscall.SIGINT)
}

// noProcessUnder fails if a process still works in dir or names it.
func noProcessUnder(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		return // not Linux
	}
	eventually(t, 10*time.Second, func() string {
		entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range entries {
			raw, _ := os.ReadFile(path)
			if strings.Contains(string(raw), dir) {
				return "still running: " + strings.ReplaceAll(string(raw), "\x00", " ")
			}
		}
		return ""
	})
}

// On a database of the user's own, weir dev adds what it runs and removes
// nothing.
func TestDevLeavesAnotherDatabasesCatalogueAlone(t *testing.T) {
	t.Parallel()
	in := installWith(t, strings.NewReplacer("ENGINE", "http://127.0.0.1:9", "sim-chat", "mine", "name: sim\n", "name: my-pool\n", "pool: sim", "pool: my-pool").Replace(testCatalogue))
	d := startDevIn(t, in.dir, in.environment)
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	getJSON(t, d.url+"/v1/models", d.key, &list)
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	if diff := cmp.Diff([]string{"mine", "sim-chat", "sim-embed", "sim-responses"}, names); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	curlLine(t, d)
	d.stop(t, syscall.SIGINT)
}

// A gateway that is killed in the middle of streams has a receipt for each
// exchange whose end a caller saw, and starts again by itself.
func TestKillNineLosesNothingThatFinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := startDev(t, dir)

	const streams = 50
	var (
		mu       sync.Mutex
		finished []string
		group    sync.WaitGroup
		ended    = make(chan struct{}, streams)
	)
	for i := range streams {
		group.Go(func() {
			// Lengths differ, so that some are over and some run when the kill comes.
			id, whole := readStream(t.Context(), d, 5+10*i)
			if whole {
				mu.Lock()
				finished = append(finished, id)
				mu.Unlock()
				ended <- struct{}{}
			}
		})
	}
	for range 5 {
		<-ended
	}
	d.stop(t, syscall.SIGKILL)
	group.Wait()

	again := startDev(t, dir)
	if again.key != d.key {
		t.Error("the key was lost")
	}
	curlLine(t, again)
	for _, id := range finished {
		out := runWeir(t, dir, again.environment(), "receipts", "--request", id)
		if !strings.Contains(out, id) || !strings.Contains(out, "completed") {
			t.Errorf("finished exchange %s has no receipt: %s", id, out)
		}
	}
	if len(finished) == streams {
		t.Error("nothing was running when the kill came: the test shows nothing")
	}
	again.stop(t, syscall.SIGINT)
}

// readStream reads one streamed chat and reports its request id and whether
// the terminal marker came.
func readStream(ctx context.Context, d *dev, tokens int) (id string, whole bool) {
	res, err := post(ctx, d.url+"/v1/chat/completions", d.key, chatWith("sim-chat", fmt.Sprintf(`"stream":true,"max_tokens":%d,"ignore_eos":true`, tokens)))
	if err != nil {
		return "", false
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", false
	}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if lines.Text() == "data: [DONE]" {
			whole = true
		}
	}
	return res.Header.Get("x-request-id"), whole
}
