// Package section writes what a benchmark measured into the part of a document
// that is marked for it.
package section

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Place puts the text between the marks of that name in a file, which is made
// with the heading if it isn't there and keeps all else that it says.
func Place(path, heading, name, text string) error {
	begin, end := "<!-- "+name+": begin -->", "<!-- "+name+": end -->"
	old, err := os.ReadFile(path)
	switch {
	case os.IsNotExist(err):
		old = []byte("# " + heading + "\n")
	case err != nil:
		return err
	}
	from, to := bytes.Index(old, []byte(begin)), bytes.Index(old, []byte(end))
	if from < 0 || to < from {
		old = append(bytes.TrimRight(old, "\n"), "\n\n"+begin+end+"\n"...)
		from, to = bytes.Index(old, []byte(begin)), bytes.Index(old, []byte(end))
	}
	var out bytes.Buffer
	out.Write(old[:from])
	out.WriteString(begin + "\n\n" + strings.TrimSpace(text) + "\n\n")
	out.Write(old[to:])
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// Row writes a row of a table.
func Row(w *strings.Builder, cells ...string) {
	w.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// Head writes the head of a table.
func Head(w *strings.Builder, cells ...string) {
	Row(w, cells...)
	w.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
}

// Machine says what it ran on, without naming the host.
func Machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	return fmt.Sprintf("%d cores of %s, %s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.Version())
}

// LoadAverage is the machine's load in the last minute, "" when it doesn't say.
func LoadAverage() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Fields(string(load))[0]
}
