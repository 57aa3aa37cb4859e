package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// node is a part of a plan, as EXPLAIN (FORMAT JSON) tells it.
type node struct {
	Type    string  `json:"Node Type"`
	Index   string  `json:"Index Name"`
	Table   string  `json:"Relation Name"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []node  `json:"Plans"`
}

// explain runs a question a few times and describes its last plan.
func (b *books) explain(ctx context.Context, q question) ([]string, error) {
	var plans []struct {
		Plan node    `json:"Plan"`
		Time float64 `json:"Execution Time"`
	}
	var times []float64
	for range 5 {
		var text []byte
		if err := b.admin.QueryRow(ctx, "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+q.sql, q.args...).Scan(&text); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &plans); err != nil {
			return nil, err
		}
		times = append(times, plans[0].Time)
	}
	slices.Sort(times)
	var read float64
	var by []string
	plans[0].Plan.walk(func(n node) {
		if n.Table == "" && n.Index == "" {
			return
		}
		if n.Loops == 0 { // a partition that the question can't be about
			return
		}
		read += (n.Rows + n.Removed) * n.Loops
		what := n.Type
		if n.Index != "" {
			what += " of `" + n.Index + "`"
		} else {
			what += " of `" + n.Table + "`"
		}
		if !slices.Contains(by, what) {
			by = append(by, what)
		}
	})
	return []string{q.name, fmt.Sprintf("%.2f ms", times[len(times)/2]), fmt.Sprintf("%.0f", read), strings.Join(by, ", ")}, nil
}

func (n node) walk(visit func(node)) {
	visit(n)
	for _, p := range n.Plans {
		p.walk(visit)
	}
}
