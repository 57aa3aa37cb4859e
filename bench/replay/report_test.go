package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/scheduler"
)

func TestChartsAreWellFormed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		c    chart
		want []string
	}{
		{"plain", chart{title: "a < b", x: "x", y: "y", lines: []curve{{"one & two", [][2]float64{{1, 2}, {3, 8}}}}}, []string{"a &lt; b", "one &amp; two", "<circle"}},
		{"logarithmic, with a limit", chart{logX: true, logY: true, lines: []curve{{"l", [][2]float64{{10, .5}, {10_000, 300}}}}, limits: []limit{{"aim", 15}}}, []string{">10k<", ">aim<"}},
		{"all the same", chart{lines: []curve{{"l", [][2]float64{{1, 1}, {2, 1}}}}}, []string{"<path"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := tt.c.svg()
			for dec := xml.NewDecoder(strings.NewReader(text)); ; {
				if _, err := dec.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%v in\n%s", err, text)
				}
			}
			for _, want := range append(tt.want, "</svg>") {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
				t.Errorf("a place that is none in\n%s", text)
			}
		})
	}
}

// tiny is a trace of requests whose second half repeats the first.
func tiny() trace {
	var t trace
	for i := range 40 {
		t = append(t, &request{
			at: time.Duration(i) * time.Second, input: 1024, output: 10, class: "all", tenant: "trace",
			blocks: []uint64{uint64(i%20) << 8, uint64(i%20)<<8 | 1},
		})
	}
	return numbered(t)
}

func TestAStudyIsWrittenWithItsPlots(t *testing.T) {
	t.Parallel()
	m, err := measureTrace(t.Context(), bubbles{t}, "tiny_trace", tiny())
	if err != nil {
		t.Fatal(err)
	}
	v, err := measureAgents(t.Context(), bubbles{t}, size{2, 4000}, []int{2, 4, publishedAgents}, []policy{roundRobin(), ours()})
	if err != nil {
		t.Fatal(err)
	}
	empty := newResult(1)
	s := &study{
		traces: []*matrix{m}, agents: []*sweep{v}, floods: []held{{"none", flooded{}}}, worst: .06,
		burst: map[string]result{"round-robin": empty, "llm-d": empty, "ours": empty},
		costs: []cost{{endpoints: 100, flows: 1, decision: 16 * time.Microsecond}, {endpoints: 1000, flows: 1, decision: 40 * time.Microsecond}},
	}
	path := filepath.Join(t.TempDir(), "docs", "scheduling.md")
	text := s.report("make it", time.Date(2026, 10, 30, 0, 0, 0, 0, time.UTC))
	if err := s.write(path, text); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Measured 2026-10-30", "A cache that forgets nothing finds 50.0 % of the blocks", "| ten tenants: farthest from its share in 10 s | ≤ 5 % | 6.0 % | **no** |",
		"| decision at 100 endpoints, 1 flows | ≤ 15 us | 16.0 us (1.00x of one flow's) | **no** |", "| decision at 1000 endpoints, 1 flows | ≤ 50 us | 40.0 us (1.00x of one flow's) | yes |",
	} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("the document lacks %q:\n%s", want, got)
		}
	}
	for line := range strings.Lines(text) {
		_, image, ok := strings.Cut(line, "](img/")
		if image = strings.TrimSuffix(strings.TrimSpace(image), ")"); !ok {
			continue
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), "img", image)); err != nil {
			t.Errorf("a plot is missing: %v", err)
		}
	}
}

func TestTheCommandComparesATrace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}` + "\n" + `{"timestamp":9000,"input_length":600,"output_length":5,"hash_ids":[1,2]}` + "\n"
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := realMain(t.Context(), bubbles{t}, []string{"-trace", path, "-endpoints", "1"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(names(policies()), sharedCache) {
		if !strings.Contains(out.String(), p+strings.Repeat(" ", 14-len(p))+"  50.00%") {
			t.Errorf("%s is missing or didn't find the second prompt:\n%s", p, out.String())
		}
	}
	for _, args := range [][]string{{"-endpoints", "0"}, {"-policy", "best"}, {"-trace", path + "x"}} {
		if err := realMain(t.Context(), bubbles{t}, args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

func TestARefusalIsCounted(t *testing.T) {
	t.Parallel()
	none := embedded("none", scheduler.Config{MaxQueued: -1}, 1)
	r := run(t, setup{workload: tiny().faster(1000), engines: fleetOf(1, standard(0)), policy: none})
	if n := r.refusals(); n == 0 || n+len(r.records) != 40 {
		t.Errorf("%d requests ended, %d were refused", len(r.records), n)
	}
}
