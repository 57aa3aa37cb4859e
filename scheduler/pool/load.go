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
func (r *reader) read(page io.Reader, engine string) (scheduler.Load, error) {
	if r.buffer == nil {
		r.buffer = make([]byte, maxMetricLine)
	}
	prefix := metricPrefix(engine)
	var load scheduler.Load
	found := false
	lines := bufio.NewScanner(page)
	lines.Buffer(r.buffer, maxMetricLine)
	for lines.Scan() {
		if line := lines.Bytes(); bytes.HasPrefix(line, prefix) && take(&load, line) {
			found = true
		}
	}
	if err := lines.Err(); err != nil {
		return scheduler.Load{}, err
	}
	if !found {
		return scheduler.Load{}, errNoLoad
	}
	return load, nil
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
	name, value, ok := sample(line)
	if !ok {
		return false
	}
	switch string(name) {
	case "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing":
		load.Running += int(value)
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred":
		load.Waiting += int(value)
	case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio":
		load.KVUsage = max(load.KVUsage, min(value, 1))
	case "vllm:cache_config_info":
		load.BlockSize = max(load.BlockSize, label(line, "block_size"))
		load.Blocks += label(line, "num_gpu_blocks")
	case "sglang:cache_config_info": // until 0.5.10; then two gauges
		load.BlockSize = max(load.BlockSize, label(line, "page_size"))
		load.Blocks += label(line, "num_pages")
	case "sglang:page_size":
		load.BlockSize = max(load.BlockSize, int(value))
	case "sglang:num_pages":
		load.Blocks += int(value)
	default:
		return false
	}
	return true
}

// maxValue bounds what is believed: no engine has a billion of anything here.
const maxValue = 1e9

// sample splits a line such as name{labels} 1.5 into its name and value. Label
// values may hold any character, so that the value is looked for behind the
// last brace.
func sample(line []byte) (name []byte, value float64, ok bool) {
	end := bytes.IndexAny(line, "{ ")
	if end <= 0 || line[0] == '#' {
		return nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if bytes.IndexByte(name, ':') < 0 {
		return nil, 0, false // not an engine's
	}
	if i := bytes.LastIndexByte(rest, '}'); i >= 0 {
		rest = rest[i+1:]
	}
	rest = bytes.TrimLeft(rest, " ") // value and maybe a timestamp
	if i := bytes.IndexByte(rest, ' '); i >= 0 {
		rest = rest[:i]
	}
	value, err := strconv.ParseFloat(string(rest), 64)
	return name, value, err == nil && value >= 0 && value < maxValue
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
