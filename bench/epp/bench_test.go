package main

import (
	"context"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test's own program be the scheduler's process, as the
// benchmark's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serveRole {
		if err := realMain(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestARunFillsEveryCell(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	t.Parallel()
	text, err := measure(t.Context(), io.Discard, options{seconds: .5})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`\| embedded \| 1 KB \| [0-9.]+ [um]s \|`, "\\| `weir scheduler` \\| 200 KB \\| [0-9.]+ [um]s \\|",
		"\\| `weir scheduler` \\| [1-9][0-9]\\.[0-9] % \\| ", `rows are left out`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "NaN") {
		t.Errorf("a cell is empty:\n%s", text)
	}
}

func TestEvenness(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		got         []float64
		jain, least float64
	}{
		{"all have as much", []float64{5, 5, 5, 5}, 1, 1},
		{"one has all", []float64{8, 0, 0, 0}, .25, 0},
		{"one has half of the others", []float64{2, 2, 1}, 25. / 27, .6},
		{"nobody has anything", []float64{0, 0}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			jain, least := evenness(tt.got)
			if math.Abs(jain-tt.jain) > 1e-9 || math.Abs(least-tt.least) > 1e-9 {
				t.Errorf("got %v and %v", jain, least)
			}
		})
	}
}

func TestDurationsAreShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		3 * time.Microsecond: "3 us", 1634 * time.Microsecond: "1.6 ms", 527 * time.Millisecond: "527 ms",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is %q", d, got)
		}
	}
}
