package enginesim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"weir/scheduler/enginesim"
)

func TestTheOpenAIClientStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, TTFT: time.Millisecond, ITL: time.Millisecond})
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("unused"))
	stream := client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
		Model:         "sim-chat",
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	})
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatal("the accumulator refused a chunk")
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if c := acc.Choices[0]; !strings.HasPrefix(c.Message.Content, "Simulated answer.") || c.FinishReason != "stop" {
		t.Errorf("choice = %+v", c)
	}
	if acc.Usage.CompletionTokens < 1 {
		t.Errorf("usage = %+v", acc.Usage)
	}
	models, err := client.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "sim-chat" {
		t.Errorf("models = %+v, %v", models, err)
	}
	if _, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "sim-chat", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("hi")},
	}); err != nil {
		t.Error(err)
	}
}

func TestMetricsHaveVLLMsNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, MaxNumSeqs: 1, TTFT: time.Millisecond, ITL: time.Millisecond})
	long := ask(strings.Repeat("the river follows the old mill ", 10), `,"max_tokens":5`)
	r.ok("/v1/chat/completions", long)
	r.ok("/v1/chat/completions", long)
	label := `{engine="0",model_name="sim-chat"} `
	_, body := r.get("/metrics")
	for _, want := range []string{
		"vllm:num_requests_running" + label + "0", "vllm:num_requests_waiting" + label + "0", "vllm:kv_cache_usage_perc" + label + "0",
		"vllm:generation_tokens_total" + label + "10", `vllm:request_success_total{engine="0",finished_reason="length",model_name="sim-chat"} 2`,
		"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total",
		"vllm:time_to_first_token_seconds_count" + label + "2", "vllm:inter_token_latency_seconds_count" + label + "8",
		"vllm:e2e_request_latency_seconds_count" + label + "2", `vllm:cache_config_info{block_size="16"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if strings.Contains(body, "vllm:prefix_cache_hits_total"+label+"0\n") {
		t.Error("no prefix hits counted")
	}
	if _, body := r.get("/load"); body != `{"server_load":0}` {
		t.Errorf("load = %s", body)
	}
}

func TestGaugesShowRunningAndWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, MaxNumSeqs: 1, TTFT: time.Hour})
	for range 3 {
		resp := r.do(t.Context(), "POST", "/v1/chat/completions", helloStream+`}`)
		_ = resp
	}
	until(t, "all three have arrived", func() bool { s := r.Stats(); return s.Running+s.Waiting == 3 })
	_, body := r.get("/metrics")
	label := `{engine="0",model_name="sim-chat"} `
	for _, want := range []string{"vllm:num_requests_running" + label + "1", "vllm:num_requests_waiting" + label + "2"} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if strings.Contains(body, "vllm:kv_cache_usage_perc"+label+"0\n") {
		t.Error("a running sequence uses no memory")
	}
	if _, body := r.get("/load"); body != `{"server_load":3}` {
		t.Errorf("load = %s", body)
	}
}
