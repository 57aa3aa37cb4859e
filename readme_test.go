package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// snippets are the README's blocks of code in a language that call the API.
func snippets(t *testing.T, language string) []string {
	t.Helper()
	const from, to = "### Python", "### Your own model server"
	raw, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, begins := strings.Cut(string(raw), from)
	text, _, ends := strings.Cut(text, to)
	if !begins || !ends {
		t.Fatalf("the README has no %q before a %q", from, to)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("no %s between %q and %q", language, from, to)
	}
	return blocks
}

// What the README prints about the API runs as it is printed.
func TestTheREADMEWorksAsPrinted(t *testing.T) {
	t.Parallel()
	d := startDev(t, t.TempDir())
	run := func(t *testing.T, dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(cleanEnvironment(), d.environment()...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	t.Run("shell", func(t *testing.T) {
		t.Parallel()
		for _, code := range snippets(t, "sh") {
			if out := run(t, ".", "bash", "-ec", code); !strings.Contains(out, `"status":"completed"`) || strings.Contains(out, `"previous_response_id":null`) {
				t.Errorf("%s\nprinted %s", code, out)
			}
		}
	})
	t.Run("node", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat("testdata/sdk/node/node_modules/openai"); err != nil {
			t.Skip("needs `npm ci --ignore-scripts` in testdata/sdk/node (make test does it)")
		}
		for _, code := range snippets(t, "js") {
			if out := run(t, "testdata/sdk/node", "node", "--input-type=module", "-e", code); !strings.Contains(out, "imulated") {
				t.Errorf("%s\nprinted %s", code, out)
			}
		}
	})
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat("testdata/clients/python/.venv/bin/python"); err != nil {
			t.Skip("needs openai-python: make test-clients installs it where PyPI is reached")
		}
		for _, code := range snippets(t, "python") {
			if out := run(t, "testdata/clients/python", ".venv/bin/python", "-c", code); !strings.Contains(out, "imulated") {
				t.Errorf("%s\nprinted %s", code, out)
			}
		}
	})
	t.Run("codex", func(t *testing.T) {
		t.Parallel()
		exe, err := filepath.Abs("testdata/clients/codex/node_modules/.bin/codex")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(exe); err != nil {
			t.Skip("needs the Codex CLI: make test-clients installs it")
		}
		home := t.TempDir()
		config := snippets(t, "toml")[0]
		const printed = "http://localhost:8080/v1"
		if !strings.Contains(config, printed) {
			t.Fatalf("no %s in %s", printed, config)
		}
		writeTo(t, filepath.Join(home, "config.toml"), strings.Replace(config, printed, d.url+"/v1", 1))
		out := run(t, t.TempDir(), "env", "CODEX_HOME="+home, exe, "exec", "--skip-git-repo-check", "--json", "Hello")
		if told := codexTold(out); told.Get("outcome").Str != "completed" || !strings.Contains(told.Get("text").Str, "imulated") {
			t.Errorf("printed %s", out)
		}
	})
}
