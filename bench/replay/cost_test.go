package main

import (
	"flag"
	"testing"
)

// The figures are for the document; here it is that they are taken at all.
func TestDecisionsAndQueuesAreMeasured(t *testing.T) { //nolint:paralleltest // it sets how long benchmarks run
	old := flag.Lookup("test.benchtime").Value.String()
	if err := flag.Set("test.benchtime", "20x"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = flag.Set("test.benchtime", old) }()
	for _, f := range []func(*testing.B){decide(t.Context(), 10, 100), pass(t.Context(), 10, 100), pass(t.Context(), 100, 10)} {
		if r := testing.Benchmark(f); r.N < 20 || r.Extra[cpuUnit] <= 0 {
			t.Errorf("%d runs, %v", r.N, r.Extra)
		}
	}
}
