package pool

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"weir/scheduler"
)

// ReadLoad takes the load from a page of Prometheus text, as a Pool does for
// its endpoints: under the names of the engine ("vllm", "sglang", "llamacpp"),
// or of any of them where it is empty. The error says that the page has none.
func ReadLoad(page io.Reader, engine string) (scheduler.Load, error) {
	var r reader
	load, _, err := r.read(io.LimitReader(page, maxMetrics), engine, 1)
	return load, err
}

// told is one thing that a load says, and the names under which engines tell
// it; any one of them is enough.
type told struct {
	what  string
	names []string
}

// tells is what an engine's page should have, by the names that take reads.
func tells(engine string) []told {
	switch engine {
	case "vllm":
		return []told{
			{"running requests", []string{"vllm:num_requests_running"}},
			{"waiting requests", []string{"vllm:num_requests_waiting"}},
			{"use of the KV cache", []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}},
			{"size of the KV cache", []string{"vllm:cache_config_info"}},
		}
	case "sglang":
		return []told{
			{"running requests", []string{"sglang:num_running_reqs"}},
			{"waiting requests", []string{"sglang:num_queue_reqs"}},
			{"use of the KV cache", []string{"sglang:token_usage"}},
			{"size of the KV cache", []string{"sglang:cache_config_info", "sglang:num_pages"}},
		}
	case "llamacpp": // newer ones don't tell of their cache
		return []told{
			{"running requests", []string{"llamacpp:requests_processing"}},
			{"waiting requests", []string{"llamacpp:requests_deferred"}},
		}
	default:
		return nil
	}
}

// MissingMetrics lists what the page of an engine doesn't tell and a pool wants
// to know, each with the names that would tell it.
func MissingMetrics(page io.Reader, engine string) (missing []string, err error) {
	present := make(map[string]bool)
	lines := bufio.NewScanner(io.LimitReader(page, maxMetrics))
	lines.Buffer(nil, maxMetricLine)
	for lines.Scan() {
		if line := lines.Bytes(); len(line) > 0 && line[0] != '#' {
			if n := name(line); meaning(n) != nil {
				present[string(n)] = true
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
wanted:
	for _, t := range tells(engine) {
		for _, n := range t.names {
			if present[n] {
				continue wanted
			}
		}
		missing = append(missing, fmt.Sprintf("%s (%s)", t.what, strings.Join(t.names, " or ")))
	}
	return missing, nil
}
