package main

import (
	"os"
	"strings"
	"testing"
)

// mooncake reads a trace that lies beside the repository, or skips the test.
func mooncake(t *testing.T, name string) trace {
	t.Helper()
	path := "../../../shared/traces/mooncake_" + name + "_trace.jsonl.gz"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the trace isn't here: %v", err)
	}
	out, err := readTrace(path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestATraceThatIsNoTraceIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"no JSON", "x", "request 1"},
		{"nothing in it", "", "no requests"},
		{"blocks that don't cover the prompt", `{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}`, "513 input tokens and 1 blocks"},
		{"a time before the first", `{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[1]}`, "request 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := parseTrace(strings.NewReader(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// The figures that the traces' publishers' data is known by: the simulator must
// reproduce them before it may say anything else.
func TestReferenceFiguresOfTheTraces(t *testing.T) {
	t.Parallel()
	tests := []struct {
		trace                                 string
		unlimited, shared, roundRobin, greedy float64 // percent, at 8 x 4,000 but for the first
	}{
		{"conversation", 36.6, 33.2, 9.8, 32.8},
		{"synthetic", 64.0, 62.8, 16.2, 62.7},
	}
	for _, tt := range tests {
		t.Run(tt.trace, func(t *testing.T) {
			t.Parallel()
			tr := mooncake(t, tt.trace)
			within := func(what string, got, want float64) {
				t.Helper()
				if d := 100*got - want; d < -.15 || d > .15 {
					t.Errorf("%s: %.2f %% of blocks hit, want %.1f %%", what, 100*got, want)
				}
			}
			within("unlimited", inOrder(tr, 1, 0), tt.unlimited)
			within("one shared cache", inOrder(tr, 1, 8*4000), tt.shared)
			within("round-robin", run(t, setup{workload: tr, engines: fleetOf(8, standard(4000)), policy: roundRobin()}).hitRate(), tt.roundRobin)
			within("prefix-greedy", run(t, setup{workload: tr, engines: fleetOf(8, standard(4000)), policy: greedy()}).hitRate(), tt.greedy)
		})
	}
}

// run runs a cell under virtual time.
func run(t *testing.T, s setup) *result {
	t.Helper()
	r, err := s.run(bubbles{t})
	if err != nil {
		t.Fatal(err)
	}
	return &r
}
