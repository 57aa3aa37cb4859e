package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

func TestCPUBelongsToTheStageThatAskedForIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		stack []string // the leaf first
		want  string
	}{
		{
			"a system call to whoever writes",
			[]string{"syscall.write", "net.(*conn).Write", "net/http.checkConnErrorWriter.Write", "net/http.(*response).Flush", "weir/api.(*sink).Send", "weir/gateway.(*exchange).relay"},
			"HTTP server: read the request, write the answer",
		},
		{
			"memory to whoever takes it",
			[]string{"runtime.mallocgc", "runtime.growslice", "weir/gateway.engineBody", "weir/gateway.(*exchange).run", "weir/api.(*Server).infer"},
			"build the engine's request",
		},
		{
			"a library to its caller",
			[]string{"github.com/tidwall/gjson.parseObject", "weir/api/inference.Parse", "net/http.(*conn).serve"},
			"edge: key, body, parsing, headers",
		},
		{
			"what an exchange does beside its stages to the exchange",
			[]string{"strings.Repeat", "weir/gateway.(*exchange).run", "weir/api.(*Server).infer"},
			"the rest of the exchange",
		},
		{"what nobody asked for to the runtime", []string{"runtime.futex", "runtime.findRunnable", "runtime.mcall"}, others},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := stageOf(stages(), tt.stack); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheStagesOfAProfileAddUp(t *testing.T) {
	t.Parallel()
	sample := func(spent int64, names ...string) *profile.Sample {
		s := &profile.Sample{Value: []int64{1, spent}}
		for _, n := range names {
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: n}}}})
		}
		return s
	}
	parts := attribute(&profile.Profile{Sample: []*profile.Sample{
		sample(30, "weir/billing.(*Writer).Settle"), sample(10, "runtime.futex"), sample(60, "log/slog.(*Logger).LogAttrs", "weir/gateway.(*exchange).report"),
	}})
	for stage, want := range map[string]float64{"settle: the receipt, shared over the batch": .3, others: .1, "the log's line": .6} {
		if math.Abs(parts[stage]-want) > 1e-9 {
			t.Errorf("%s has %v, want %v", stage, parts[stage], want)
		}
	}
	text := stageTable([]profiled{{load: load{name: "small"}, each: 200 * time.Microsecond, parts: parts}}, "bench")
	for _, want := range []string{"| the log's line | 120, 60 % |", "| **all** | **200** |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if rows := strings.Count(text, "\n| "); rows != len(stages())+3 {
		t.Errorf("%d rows in\n%s", rows, text)
	}
}
