package pool

import (
	"strings"
	"testing"

	"weir/scheduler"
)

func TestWhatAPageLacksIsNamed(t *testing.T) {
	t.Parallel()
	const full = "# HELP x y\nvllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting 1\n" +
		"vllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n"
	for name, tt := range map[string]struct {
		page, engine string
		missing      int
	}{
		"all is there":            {full, "vllm", 0},
		"an older name will do":   {strings.Replace(full, "kv_cache", "gpu_cache", 1), "vllm", 0},
		"one is not":              {strings.Replace(full, "num_requests_waiting", "waiting", 1), "vllm", 1},
		"a comment is no value":   {strings.ReplaceAll(full, "vllm:", "# vllm:"), "vllm", 4},
		"another engine's names":  {full, "sglang", 4},
		"llama.cpp tells less":    {"llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n", "llamacpp", 0},
		"an unknown engine's all": {"", "other", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := MissingMetrics(strings.NewReader(tt.page), tt.engine)
			if err != nil || len(got) != tt.missing {
				t.Errorf("missing %q, %v; want %d", got, err, tt.missing)
			}
		})
	}
	if _, err := MissingMetrics(strings.NewReader(strings.Repeat("x", maxMetricLine+1)), "vllm"); err == nil {
		t.Error("a page of one endless line is read")
	}
}

// What is asked for has to be what is read: a renamed metric in one list alone
// would let a page pass that tells the scheduler nothing.
func TestEveryMetricThatIsAskedForIsRead(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"vllm", "sglang", "llamacpp"} {
		for _, one := range tells(engine) {
			for _, n := range one.names {
				if meaning([]byte(n)) == nil {
					t.Errorf("%s: nobody reads %s", engine, n)
				}
			}
		}
	}
	load, err := ReadLoad(strings.NewReader("vllm:num_requests_running 2\nsglang:num_running_reqs 5\n"), "sglang")
	if want := (scheduler.Load{Running: 5}); err != nil || load != want {
		t.Errorf("load %+v, %v", load, err)
	}
}
