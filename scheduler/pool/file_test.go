package pool_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler/pool"
)

// finder collects what a source reports.
type finder struct {
	mu    sync.Mutex
	found []pool.Found
	times int
	log   bytes.Buffer
}

func (f *finder) report(found []pool.Found) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found, f.times = found, f.times+1
}

func (f *finder) ids() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, one := range f.found {
		ids = append(ids, one.ID+"="+one.URL)
	}
	return strings.Join(ids, " ")
}

func (f *finder) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

func (f *finder) logged() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.String()
}

// follow watches a source until the test ends.
func follow(t *testing.T, s pool.Source) *finder {
	t.Helper()
	f := &finder{}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Watch(ctx, slog.New(slog.NewTextHandler(f, nil)), f.report)
	}()
	t.Cleanup(func() { stop(); <-done })
	return f
}

// until waits for what another goroutine brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.After(10 * time.Second); !ok(); {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// replace renames a new file over the old one.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestFileIsFollowedAndNeverEmptiedByMistake(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	f := follow(t, pool.File{Path: path, Every: time.Millisecond})
	until(t, "a file that isn't there is told of", func() bool { return strings.Contains(f.logged(), "no such file") })

	replace(t, path, `endpoints: [{name: a, address: 10.0.0.1, port: "8000"}]`)
	until(t, "the first endpoint is found", func() bool { return f.ids() == "a=http://10.0.0.1:8000" })
	replace(t, path, `{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": "8000"}, {"name": "b", "namespace": "prod", "address": "fd00::2", "port": 8001}]}`)
	const both = "a=http://10.0.0.1:8000 prod/b=http://[fd00::2]:8001"
	until(t, "a rename is noticed, JSON read, a number taken for a port", func() bool { return f.ids() == both })

	for name, text := range map[string]string{
		"nothing":          "",
		"half of it":       "endpoints: [{name: a, addr",
		"another document": "services: []",
		"no good entry":    "endpoints: [{name: x, address: 'a/b', port: '1'}]",
		"too much":         "endpoints: []\n#" + strings.Repeat("x", 1<<20),
	} {
		before := len(f.logged())
		replace(t, path, text)
		until(t, name+" is complained about", func() bool { return strings.Contains(f.logged()[before:], "last good set stays") })
		if got := f.ids(); got != both {
			t.Errorf("%s: endpoints are %q, want the last good ones", name, got)
		}
		replace(t, path, "endpoints: [{name: a, address: 10.0.0.1, port: '8000'}, {name: b, namespace: prod, address: 'fd00::2', port: '8001'}]")
		times := func() int { f.mu.Lock(); defer f.mu.Unlock(); return f.times }
		n := times()
		until(t, "the good file is read again", func() bool { return times() > n })
	}
	before := len(f.logged())
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	until(t, "a removed file is told of", func() bool { return strings.Contains(f.logged()[before:], "no such file") })
	if got := f.ids(); got != both {
		t.Errorf("without the file, endpoints are %q, want the last good ones", got)
	}
	replace(t, path, "endpoints: []")
	until(t, "an empty list means none", func() bool { return f.ids() == "" })
}

func TestFileSkipsWrongEntriesAndSaysWhich(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, entry, want string }{
		{"without a name", `{address: 10.0.0.2, port: "1"}`, "needs a name"},
		{"a name that would break a log line", `{name: "x\ny", address: 10.0.0.2, port: "1"}`, "needs a name"},
		{"a name twice", `{name: good, address: 10.0.0.2, port: "1"}`, "there twice"},
		{"an address with a path", `{name: x, address: 10.0.0.2/admin, port: "1"}`, "address"},
		{"an address with a user", `{name: x, address: "u@10.0.0.2", port: "1"}`, "address"},
		{"no address", `{name: x, port: "1"}`, "address"},
		{"no port", `{name: x, address: 10.0.0.2}`, "port"},
		{"port 0", `{name: x, address: 10.0.0.2, port: "0"}`, "port"},
		{"port 65536", `{name: x, address: 10.0.0.2, port: "65536"}`, "port"},
		{"metrics elsewhere than at a host", `{name: x, address: 10.0.0.2, port: "1", metricsHost: "http://h"}`, "metricsHost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f")
			replace(t, path, "endpoints:\n- {name: good, address: good.example, port: '80', metricsHost: '10.9.9.9:9090', labels: {llm-d.ai/role: decode}}\n- "+tt.entry+"\n")
			f := follow(t, pool.File{Path: path, Scheme: "https", Every: time.Millisecond})
			until(t, "the good entry is found", func() bool { return f.ids() != "" })
			want := []pool.Found{{
				ID: "good", URL: "https://good.example:80", MetricsURL: "https://10.9.9.9:9090/metrics",
				Labels: map[string]string{"llm-d.ai/role": "decode"},
			}}
			f.mu.Lock()
			defer f.mu.Unlock()
			if diff := cmp.Diff(want, f.found); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			if !strings.Contains(f.log.String(), tt.want) {
				t.Errorf("the log says %q, want %q", f.log.String(), tt.want)
			}
		})
	}
}

func FuzzFile(f *testing.F) {
	f.Add("endpoints: [{name: a, address: 10.0.0.1, port: \"8000\"}]")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		found, err := pool.ParseFile(text)
		for _, one := range found {
			if err != nil || one.ID == "" || strings.ContainsAny(one.URL[len("http://"):], "/@?# \n") {
				t.Errorf("found %s with %v", fmt.Sprint(one), err)
			}
		}
	})
}
