package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// codexConfig is what docs/compatibility.md tells users of the Codex CLI to
// write, with retries that don't wait for minutes.
const codexConfig = `model = %q
model_provider = "weir"
model_context_window = 32768

[model_providers.weir]
name = "Weir"
base_url = "%s/v1"
env_key = "WEIR_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
`

// codexScripts are tasks for an agent that runs commands.
func codexScripts() map[string][]turn {
	run := func(id, command string) []string {
		return callDelta(0, id, "exec_command", fmt.Sprintf(`{"cmd":%q}`, command))
	}
	const patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: notes.txt\n@@\n-the river is low\n+the river is high\n*** Add File: done.txt\n+edited\n*** End Patch\nEOF\n"
	task := func(breaks int) []turn {
		return []turn{
			{deltas: append(append(think("I read the file first."), say("I look at the notes.")...), run("call_1", "cat notes.txt")...), finish: "tool_calls"},
			{deltas: run("call_2", patch), finish: "tool_calls", breaks: breaks},
			{deltas: run("call_3", "cat notes.txt done.txt"), finish: "tool_calls"},
			{deltas: say("The notes ", "are corrected."), finish: "stop"},
		}
	}
	return map[string][]turn{"codex-task": task(0), "codex-broken": task(1)}
}

// codex runs `codex exec` for each feature, side by side, and tells what its
// events say.
func codex(t *testing.T, r *rig, features []string) map[string]gjson.Result {
	t.Helper()
	answers := make([]gjson.Result, len(features))
	var running sync.WaitGroup
	for i, feature := range features {
		running.Go(func() { answers[i] = r.codexFeature(t, feature) })
	}
	running.Wait()
	told := map[string]gjson.Result{}
	for i, feature := range features {
		told[feature] = answers[i]
	}
	return told
}

func (r *rig) codexFeature(t *testing.T, feature string) gjson.Result {
	t.Helper()
	work := t.TempDir()
	switch feature {
	case "streamed text":
		return r.codexExec(t, work, r.key, "scripted", "[play text]")
	case "reasoning":
		return r.codexExec(t, work, r.key, "scripted", "[play reasoning]")
	case "a task with edits of files":
		return r.codexTask(t, work, "codex-task")
	case "going on after an engine's death":
		return r.codexTask(t, work, "codex-broken")
	case "an answer that is cut off":
		return r.codexExec(t, work, r.key, "scripted", "[play length]")
	case "an engine that breaks off":
		return r.codexExec(t, work, r.key, "flaky", "[play broken]")
	case "an engine that reports an error":
		return r.codexExec(t, work, r.key, "flaky", "[play fault]")
	case "a rate limit":
		key := r.newKey(t, "--rpm", "1")
		r.codexExec(t, work, key, "scripted", "[play text]")
		return r.codexExec(t, work, key, "scripted", "[play text]")
	case "no credit left":
		wall := newPaywall(t, r)
		defer func() {
			// It takes a status that it doesn't know for a broken stream.
			if n := wall.asked.Load(); n < 1 || n > 2 {
				t.Errorf("codex asked %d times, and may retry once", n)
			}
		}()
		return r.codexExecAt(t, wall.url, work, r.key, "scripted", "[play text]")
	case "a model at capacity":
		return r.codexExec(t, work, r.key, "busy", "[play busy]")
	default:
		t.Errorf("nobody plays %q", feature)
		return gjson.Result{}
	}
}

// codexTask has the agent correct a file, and looks at the file and at what the
// engine was shown.
func (r *rig) codexTask(t *testing.T, work, script string) gjson.Result {
	t.Helper()
	writeTo(t, filepath.Join(work, "notes.txt"), "the river is low\n")
	got := r.codexExec(t, work, r.key, "scripted", "Correct the notes. [play "+script+"]")
	for name, want := range map[string]string{"notes.txt": "the river is high\n", "done.txt": "edited\n"} {
		if raw, err := os.ReadFile(filepath.Join(work, name)); err != nil || string(raw) != want {
			t.Errorf("%s is %q, %v", name, raw, err)
		}
	}
	asked := r.engine.requests(script)
	if len(asked) == 0 {
		t.Errorf("the engine was not asked: %s", got.Raw)
		return got
	}
	last := asked[len(asked)-1].Get("messages")
	for _, want := range []string{"the river is low", "the river is high", "edited"} {
		if !strings.Contains(last.Get(`#(role=="tool")#.content`).Raw, want) {
			t.Errorf("the engine was not shown %q: %s", want, last.Get(`#(role=="tool")#`).Raw)
		}
	}
	for i := range asked[1:] { // each turn begins with the bytes of the one before
		before := strings.TrimSuffix(asked[i].Get("messages").Raw, "]")
		if !strings.HasPrefix(asked[i+1].Get("messages").Raw, before) {
			t.Errorf("turn %d is not what turn %d was and more", i+1, i)
		}
	}
	return got
}

func (r *rig) codexExec(t *testing.T, work, key, model, prompt string) gjson.Result {
	t.Helper()
	return r.codexExecAt(t, r.url, work, key, model, prompt)
}

func (r *rig) codexExecAt(t *testing.T, url, work, key, model, prompt string) gjson.Result {
	t.Helper()
	exe, err := filepath.Abs("testdata/clients/codex/node_modules/.bin/codex")
	if err != nil {
		t.Error(err)
	}
	home := t.TempDir()
	writeTo(t, filepath.Join(home, "config.toml"), fmt.Sprintf(codexConfig, model, url))
	cmd := exec.CommandContext(t.Context(), exe, "exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox", prompt)
	cmd.Dir = work
	cmd.Env = append(cleanEnvironment(), "HOME="+home, "CODEX_HOME="+home, "WEIR_API_KEY="+key)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	told := codexTold(out.String())
	if told.Get("outcome").Str == "" {
		t.Errorf("codex: %v\n%s\n%s", err, out.Bytes(), errs.Bytes())
	}
	return told
}

// codexTold reads the events of `codex exec --json`.
func codexTold(out string) gjson.Result {
	text, outcome, message := "", "", ""
	for line := range strings.Lines(out) {
		e := gjson.Parse(line)
		switch e.Get("type").Str {
		case "item.completed":
			if e.Get("item.type").Str == "agent_message" {
				text = e.Get("item.text").Str
			}
		case "turn.completed":
			outcome = "completed"
		case "error": // it may try again
			message = e.Get("message").Str
		case "turn.failed":
			outcome, message = "error", e.Get("error.message").Str
		}
	}
	return gjson.Parse(fmt.Sprintf(`{"text":%q,"outcome":%q,"message":%q}`, text, outcome, message))
}
