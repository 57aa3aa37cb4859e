package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// blockTokens is the size of a cache block here: that of Mooncake's traces.
const blockTokens = 512

// request is one request of a workload.
type request struct {
	id     int
	at     time.Duration // arrival, from the start of the run
	input  int           // tokens of the prompt
	output int           // tokens to make
	blocks []uint64      // of the prompt; two prompts agree up to a block whose id they share

	class   string // what it is measured under
	tenant  string
	band    int
	weight  int
	session string // "" for none
	turn    int    // of the session, from 1
}

// workload makes requests. Those of a closed loop come when others end.
type workload interface {
	// first lists the requests whose arrival is known, by arrival.
	first() []*request
	// ended is told of the end of each request, and may answer with one that
	// follows from it.
	ended(r *request, at time.Duration) *request
}

// trace is a workload whose arrivals are all known.
type trace []*request

func (t trace) first() []*request                          { return t }
func (t trace) ended(_ *request, _ time.Duration) *request { return nil }

// numbered puts requests in the order of their arrival and numbers them.
func numbered(all []*request) []*request {
	slices.SortStableFunc(all, func(a, b *request) int { return cmp.Compare(a.at, b.at) })
	for i, r := range all {
		r.id = i
	}
	return all
}

// faster returns the trace with all arrivals closer by so much.
func (t trace) faster(by float64) trace {
	out := make(trace, len(t))
	for i, r := range t {
		c := *r
		c.at = time.Duration(float64(r.at) / by)
		out[i] = &c
	}
	return out
}

// line is how Mooncake writes a request.
type line struct {
	Timestamp int64    `json:"timestamp"` // ms
	Input     int      `json:"input_length"`
	Output    int      `json:"output_length"`
	Blocks    []uint64 `json:"hash_ids"`
}

// readTrace reads a file in Mooncake's format, gzipped or not.
func readTrace(path string) (t trace, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if magic, _ := r.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		t, err = parseTrace(z)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return t, nil
	}
	if t, err = parseTrace(r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func parseTrace(r io.Reader) (trace, error) {
	var t trace
	dec := json.NewDecoder(r)
	for {
		var l line
		err := dec.Decode(&l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("request %d: %w", len(t)+1, err)
		}
		if l.Timestamp < 0 || l.Input < 1 || l.Output < 0 || len(l.Blocks) != (l.Input+blockTokens-1)/blockTokens {
			return nil, fmt.Errorf("request %d: %d input tokens and %d blocks of %d", len(t)+1, l.Input, len(l.Blocks), blockTokens)
		}
		t = append(t, &request{
			at: time.Duration(l.Timestamp) * time.Millisecond, input: l.Input, output: max(l.Output, 1), blocks: l.Blocks,
			class: "all", tenant: "trace",
		})
	}
	if len(t) == 0 {
		return nil, errors.New("no requests")
	}
	return numbered(t), nil
}
