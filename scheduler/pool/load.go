package pool

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"weir/scheduler"
)

// An exposition page is read up to maxMetrics bytes and its lines up to
// maxMetricLine.
const (
	maxMetrics    = 8 << 20
	maxMetricLine = 64 << 10
)

var errNoLoad = errors.New("no metric of a known engine")

// reader finds loads in pages of Prometheus text. It keeps its buffer from one
// page to the next, so it is for one goroutine.
//
// It wants five lines of a page with hundreds, from every endpoint several
// times a second, which is why it parses no others.
type reader struct{ buffer []byte }

// read takes the load from a page, under the names of the engine, or of any
// known one where engine is empty. An engine with several ranks has a series
// for each: requests and cache blocks add up, and the fullest cache counts.
// Of one with so many ranks, each is also read apart; nil where the page
// doesn't tell all of them apart.
func (r *reader) read(page io.Reader, engine string, ranks int) (load scheduler.Load, each []scheduler.Load, err error) {
	if r.buffer == nil {
		r.buffer = make([]byte, maxMetricLine)
	}
	prefix := metricPrefix(engine)
	if ranks > 1 {
		each = make([]scheduler.Load, ranks)
	}
	told := map[int]bool{}
	found := false
	lines := bufio.NewScanner(page)
	lines.Buffer(r.buffer, maxMetricLine)
	for lines.Scan() {
		line := lines.Bytes()
		if !bytes.HasPrefix(line, prefix) || !take(&load, line) {
			continue
		}
		found = true
		if each == nil {
			continue
		}
		if rank, ok := rankOf(line); ok && rank < ranks {
			take(&each[rank], line)
			told[rank] = true
		}
	}
	switch {
	case lines.Err() != nil:
		return scheduler.Load{}, nil, lines.Err()
	case !found:
		return scheduler.Load{}, nil, errNoLoad
	case len(told) < ranks:
		each = nil
	}
	return load, each, nil
}

// rankOf is the data-parallel rank that a line is of: vLLM calls it engine,
// SGLang dp_rank.
func rankOf(line []byte) (rank int, ok bool) {
	for _, name := range []string{"engine", "dp_rank"} {
		if bytes.Contains(line, []byte(name+`="`)) {
			return label(line, name), true
		}
	}
	return 0, false
}

// metricPrefix is how the names of an engine's metrics begin; nil for an engine
// that isn't known, since it may well speak like one that is.
func metricPrefix(engine string) []byte {
	switch engine {
	case "vllm", "sglang", "llamacpp":
		return []byte(engine + ":")
	default:
		return nil
	}
}

// take adds what a line says to the load, and reports whether it was of use.
func take(load *scheduler.Load, line []byte) bool {
	set := meaning(name(line))
	if set == nil {
		return false
	}
	v, ok := value(line)
	if ok {
		set(load, line, v)
	}
	return ok
}

// meaning is what to do with a metric; nil where it is of no use.
func meaning(name []byte) func(l *scheduler.Load, line []byte, v float64) {
	switch string(name) {
	case "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing":
		return func(l *scheduler.Load, _ []byte, v float64) { l.Running += int(v) }
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred":
		return func(l *scheduler.Load, _ []byte, v float64) { l.Waiting += int(v) }
	case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio":
		return func(l *scheduler.Load, _ []byte, v float64) { l.KVUsage = max(l.KVUsage, min(v, 1)) }
	case "vllm:cache_config_info":
		return func(l *scheduler.Load, line []byte, _ float64) {
			l.BlockSize = max(l.BlockSize, label(line, "block_size"))
			l.Blocks += label(line, "num_gpu_blocks")
		}
	case "sglang:cache_config_info": // until 0.5.10; then two gauges
		return func(l *scheduler.Load, line []byte, _ float64) {
			l.BlockSize = max(l.BlockSize, label(line, "page_size"))
			l.Blocks += label(line, "num_pages")
		}
	case "sglang:page_size":
		return func(l *scheduler.Load, _ []byte, v float64) { l.BlockSize = max(l.BlockSize, int(v)) }
	case "sglang:num_pages":
		return func(l *scheduler.Load, _ []byte, v float64) { l.Blocks += int(v) }
	default:
		return nil
	}
}

// maxValue bounds what is believed: no engine has a billion of anything here.
const maxValue = 1e9

// name is the metric's in a line such as name{labels} 1.5.
func name(line []byte) []byte {
	for i, b := range line {
		if b == '{' || b == ' ' {
			return line[:i]
		}
	}
	return nil
}

// value is the number of a line. Label values may hold any character, so that
// it is looked for behind the last brace; a timestamp may follow it.
func value(line []byte) (v float64, ok bool) {
	rest := line[len(name(line)):]
	if i := bytes.LastIndexByte(rest, '}'); i >= 0 {
		rest = rest[i+1:]
	}
	rest = bytes.TrimLeft(rest, " ")
	if i := bytes.IndexByte(rest, ' '); i >= 0 {
		rest = rest[:i]
	}
	v, err := strconv.ParseFloat(string(rest), 64)
	return v, err == nil && v >= 0 && v < maxValue
}

// label is the number that a label of the line has; 0 without one.
func label(line []byte, name string) int {
	_, rest, ok := strings.Cut(strings.ReplaceAll(string(line), "{", ","), ","+name+`="`)
	if !ok {
		return 0
	}
	digits, _, _ := strings.Cut(rest, `"`)
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n >= maxValue {
		return 0
	}
	return n
}
