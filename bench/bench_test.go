package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/bench/proc"
)

// TestMain lets the test binary play the servers that the command starts as
// processes of their own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "mock" || os.Args[1] == floorName) {
		if err := realMain(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// upstream is a mock with its bench, and a target that leads to it.
func upstream(t *testing.T) (*bench, *target) {
	t.Helper()
	srv := httptest.NewServer(newMock())
	t.Cleanup(srv.Close)
	b := &bench{client: newClient(), progress: io.Discard, mockAddr: strings.TrimPrefix(srv.URL, "http://")}
	t.Cleanup(b.client.http.CloseIdleConnections)
	return b, &target{name: "mock", url: srv.URL}
}

func through(t *testing.T, h http.Handler) *target {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &target{name: "under test", url: srv.URL}
}

func TestTheFloorPassesEveryByte(t *testing.T) {
	t.Parallel()
	b, direct := upstream(t)
	floor := through(t, newFloor(direct.url))
	for _, s := range []shape{
		newShape(burstModel, 512, false), newShape(burstModel, 512, true), newShape(burstModel, 200_000, false),
	} {
		_, want, err := b.client.exchange(t.Context(), direct, s, time.Now(), nil)
		if err != nil {
			t.Fatal(err)
		}
		took, got, err := b.client.exchange(t.Context(), floor, s, time.Now(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the answer differs: %d and %d bytes", len(got), len(want))
		}
		if took.first <= 0 || took.total < took.first {
			t.Errorf("times = %+v", took)
		}
	}
	stats, err := b.quiet(t.Context())
	if err != nil || stats.Done != 6 || stats.Cancelled != 0 || stats.Chunks != 2*streamEvents {
		t.Errorf("stats = %+v, %v", stats, err)
	}
}

func TestTheMockCountsTokensAsItGoesWhenAskedTo(t *testing.T) {
	t.Parallel()
	_, direct := upstream(t)
	body := strings.Replace(string(newShape(burstModel, 10, true).body), `"include_usage":true`, `"include_usage":true,"continuous_usage_stats":true`, 1)
	_, answer, err := newClient().exchange(t.Context(), direct, shape{body: []byte(body), stream: true}, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(answer, []byte(`"usage":{`)); n != streamEvents+1 {
		t.Errorf("%d counts of usage", n)
	}
}

func TestAWrongAnswerFailsTheRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		stream bool
		spoil  func(answer []byte) []byte
		want   string
	}{
		{"document without usage", false, func(a []byte) []byte { return bytes.Replace(a, []byte("completion_tokens"), []byte("x"), 1) }, "without usage"},
		{"stream without usage", true, func(a []byte) []byte { return bytes.ReplaceAll(a, []byte("completion_tokens"), []byte("x")) }, "without usage"},
		{"stream without its end", true, func(a []byte) []byte { return bytes.Replace(a, []byte("data: [DONE]"), nil, 1) }, "without [DONE]"},
		{"stream that lost an event", true, func(a []byte) []byte { return bytes.Replace(a, []byte(`"content":" word117"`), nil, 1) }, "63 of 64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b, direct := upstream(t)
			s := newShape(burstModel, 100, tt.stream)
			_, good, err := b.client.exchange(t.Context(), direct, s, time.Now(), nil)
			if err != nil {
				t.Fatal(err)
			}
			bad := tt.spoil(slices.Clone(good))
			broken := through(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bad) }))
			if _, err := b.client.closed(t.Context(), broken, s, 2, 4); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("a status that is no success", func(t *testing.T) {
		t.Parallel()
		b, _ := upstream(t)
		busy := through(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "full", http.StatusServiceUnavailable) }))
		if _, err := b.client.open(t.Context(), busy, newShape(burstModel, 10, false), 1000, 3); err == nil || !strings.Contains(err.Error(), "503: full") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestClosedLoopMakesExactlySoManyRequests(t *testing.T) {
	t.Parallel()
	b, direct := upstream(t)
	got, err := b.client.closed(t.Context(), direct, newShape(burstModel, 10, false), 3, 17)
	if err != nil || len(got.samples) != 17 || got.wall <= 0 {
		t.Errorf("%d samples in %v, %v", len(got.samples), got.wall, err)
	}
	if s, _ := b.mockStats(t.Context()); s.Done != 17 {
		t.Errorf("the upstream answered %d", s.Done)
	}
}

func TestOpenLoopCountsTheWaitThatAStallCauses(t *testing.T) {
	t.Parallel()
	const stall = 200 * time.Millisecond
	b, direct := upstream(t)
	var one sync.Mutex
	floor := newFloor(direct.url)
	first := true
	slow := through(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one.Lock()
		defer one.Unlock()
		if first {
			first = false
			<-time.After(stall)
		}
		floor.ServeHTTP(w, r)
	}))
	got, err := b.client.open(t.Context(), slow, newShape(burstModel, 10, false), 100, 10)
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	for _, s := range got.samples {
		if s.total > stall/4 {
			late++
		}
	}
	if late < 8 {
		t.Errorf("%d of 10 requests show the stall: %v", late, got.samples)
	}
}

func TestDroppedStreamsAreFollowedToTheUpstream(t *testing.T) {
	t.Parallel()
	b, direct := upstream(t)
	floor := through(t, newFloor(direct.url))
	floor.metered = true
	if err := answers(direct.url + "/_forget")(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, err := b.overrun(t.Context(), floor)
	if err != nil || over < 0 || over > 10 {
		t.Errorf("overrun %d, %v", over, err)
	}
	leave, err := b.client.hold(t.Context(), floor, newShape(idleModel, 10, true), 20)
	if err != nil {
		t.Fatal(err)
	}
	if s, _ := b.mockStats(t.Context()); s.Active != 20 {
		t.Errorf("%d streams are open", s.Active)
	}
	leave()
	if s, err := b.quiet(t.Context()); err != nil || s.Cancelled != 20+droppedStreams {
		t.Errorf("stats = %+v, %v", s, err)
	}
	if b.made.Cancelled != droppedStreams || b.made.Done != 0 {
		t.Errorf("metered: %+v", b.made)
	}
}

func TestATargetThatDoesNotCancelFailsTheRun(t *testing.T) {
	t.Parallel()
	b, direct := upstream(t)
	floor := newFloor(direct.url)
	deaf := through(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		floor.ServeHTTP(patient{w}, r.WithContext(context.WithoutCancel(r.Context())))
	}))
	if _, err := b.overrun(t.Context(), deaf); err == nil || !strings.Contains(err.Error(), "50 streams were dropped, the upstream lost 0") {
		t.Errorf("err = %v", err)
	}
}

// patient goes on writing to a caller who has left.
type patient struct{ http.ResponseWriter }

func (p patient) Write(b []byte) (int, error) { _, _ = p.ResponseWriter.Write(b); return len(b), nil }

func (p patient) Flush() {
	if f, ok := p.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func TestReceiptsMustEqualWhatWasMade(t *testing.T) {
	t.Parallel()
	made := Stats{Done: 10, Cancelled: 3}
	right := booked{completed: 10, left: 3, uncached: 720, cached: 480, output: 480, thought: 160}
	if err := right.compare(made); err != nil {
		t.Errorf("equal: %v", err)
	}
	for name, spoil := range map[string]func(*booked){
		"finished exchanges":   func(r *booked) { r.completed-- },
		"callers who left":     func(r *booked) { r.left++ },
		"uncached input":       func(r *booked) { r.uncached += 48 },
		"cached input":         func(r *booked) { r.cached = 0 },
		"output tokens: 640":   func(r *booked) { r.output = 640 },
		"reasoning tokens: 0,": func(r *booked) { r.thought = 0 },
	} {
		r := right
		spoil(&r)
		if err := r.compare(made); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

func TestRanksAndSpread(t *testing.T) {
	t.Parallel()
	var samples []sample
	for i := range 100 {
		samples = append(samples, sample{total: time.Duration(100 - i)})
	}
	if p := percentiles(samples, func(s sample) time.Duration { return s.total }); p != [2]time.Duration{51, 100} {
		t.Errorf("p50, p99 = %v", p)
	}
	if s := spreadOf([]int{5, 1, 9}); s != (spread[int]{5, 1, 9}) {
		t.Errorf("spread = %+v", s)
	}
	if s := spreadOf[int](nil); s != (spread[int]{}) {
		t.Errorf("spread of nothing = %+v", s)
	}
}

func TestRatiosCompareWithinARound(t *testing.T) {
	t.Parallel()
	l := load{name: "x"}
	cpu := func(us ...int) []round {
		var out []round
		for _, v := range us {
			out = append(out, round{cpu: []time.Duration{time.Duration(v) * time.Microsecond}})
		}
		return out
	}
	b := &bench{results: results{"x": {floorName: cpu(100, 200, 400), "weir": cpu(200, 300, 800)}}}
	if r := b.ratio(l, &target{name: "weir"}); r != (spread[float64]{2, 1.5, 2}) {
		t.Errorf("ratio = %+v", r)
	}
}

func TestKeysAreNotShown(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-peer-key", "secret", "-rounds", "5"}, {"--peer-key=secret", "-rounds", "5"}} {
		if got := shown(args); strings.Contains(got, "secret") || !strings.Contains(got, "-rounds 5") {
			t.Errorf("shown(%v) = %q", args, got)
		}
	}
}

func TestTheWholeRunWithoutAGateway(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "performance.md")
	var out, progress bytes.Buffer
	err := realMain(t.Context(), []string{"-rounds", "1", "-scale", "0.01", "-idle", "20", "-open", "100", "-o", page}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for _, want := range []string{"| small JSON, 8 callers |", "| 64-event stream, 1 caller | floor |", "KB per idle stream (20)", "MB with 100 open streams", "HTTP/2 over TLS 1.3 |", "every dropped stream was cancelled"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	if got, err := os.ReadFile(page); err != nil || !strings.Contains(string(got), out.String()) {
		t.Errorf("the page lacks the report: %v", err)
	}
	all, err := proc.List()
	if err != nil {
		t.Fatal(err)
	}
	for pid, p := range all {
		if p.Parent == os.Getpid() && p.Name != "" {
			t.Errorf("process %d (%s) was left behind", pid, p.Name)
		}
	}
}

func TestAMissingGatewayIsSaid(t *testing.T) {
	t.Parallel()
	err := realMain(t.Context(), []string{"-weir", filepath.Join(t.TempDir(), "weir")}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("err = %v", err)
	}
	if err := realMain(t.Context(), []string{"-rounds", "0"}, io.Discard, io.Discard); err == nil {
		t.Error("no rounds are accepted")
	}
}
