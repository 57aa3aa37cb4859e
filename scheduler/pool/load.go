package pool

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// Load is what an engine last said of itself.
type Load struct {
	Running int       `json:"running"`  // requests in the batch
	Waiting int       `json:"waiting"`  // requests in the engine's own queue
	KVUsage float64   `json:"kv_usage"` // part of the KV cache in use, 0 to 1
	At      time.Time `json:"at"`       // when it was read
}

// Loads returns the last load of every endpoint that has told one.
func (p *Pool) Loads() map[string]Load {
	p.mu.Lock()
	defer p.mu.Unlock()
	loads := make(map[string]Load, len(p.watched))
	for id, w := range p.watched {
		if !w.load.At.IsZero() {
			loads[id] = w.load
		}
	}
	return loads
}

// An exposition page is read up to maxMetrics bytes and its lines up to
// maxMetricLine.
const (
	maxMetrics    = 8 << 20
	maxMetricLine = 64 << 10
)

var errNoLoad = errors.New("no metric of a known engine")

// parseLoad finds the load in a page of Prometheus text, under the names of
// vLLM, SGLang or llama.cpp. An engine with several ranks has a series for
// each: requests add up, and the fullest cache counts.
//
// It wants three lines of a page with hundreds, from every endpoint every other
// second, which is why it doesn't parse the rest.
func parseLoad(page io.Reader) (Load, error) {
	var load Load
	found := false
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, maxMetricLine)
	for lines.Scan() {
		name, value, ok := sample(lines.Text())
		if !ok {
			continue
		}
		switch name {
		case "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing":
			load.Running += int(value)
		case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred":
			load.Waiting += int(value)
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio":
			load.KVUsage = max(load.KVUsage, value)
		default:
			continue
		}
		found = true
	}
	if err := lines.Err(); err != nil {
		return Load{}, err
	}
	if !found {
		return Load{}, errNoLoad
	}
	return load, nil
}

// sample splits a line such as name{labels} 1.5 into its name and value. Label
// values may hold any character, so that the value is looked for behind the
// last brace.
func sample(line string) (name string, value float64, ok bool) {
	end := strings.IndexAny(line, "{ ")
	if end <= 0 || line[0] == '#' {
		return "", 0, false
	}
	name, rest := line[:end], line[end:]
	if i := strings.LastIndexByte(rest, '}'); i >= 0 {
		rest = rest[i+1:]
	}
	fields := strings.Fields(rest) // value and maybe a timestamp
	if len(fields) == 0 {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	return name, value, err == nil && value >= 0 && value < 1e9
}
