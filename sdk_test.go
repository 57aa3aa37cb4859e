package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// The official SDKs are the judges of the wire format.

func TestOfficialSDKs(t *testing.T) {
	t.Parallel()
	d := startDev(t, t.TempDir())

	t.Run("openai-go lists models and streams a chat", func(t *testing.T) {
		t.Parallel()
		client := openai.NewClient(option.WithBaseURL(d.url+"/v1"), option.WithAPIKey(d.key), option.WithMaxRetries(0))
		models, err := client.Models.List(t.Context())
		if err != nil || len(models.Data) < 2 {
			t.Fatalf("models: %+v, %v", models, err)
		}
		stream := client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
			Model:         "sim-chat",
			Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")},
			MaxTokens:     openai.Int(20),
			StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		})
		acc := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("chunk does not fit: %+v", stream.Current())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if acc.Usage.CompletionTokens == 0 || acc.Choices[0].Message.Content == "" || acc.Model != "sim-chat" {
			t.Errorf("accumulated %+v", acc.ChatCompletion)
		}
	})

	t.Run("openai-node does the whole tour", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat("testdata/sdk/node/node_modules/openai"); err != nil {
			t.Skip("needs `npm ci --ignore-scripts` in testdata/sdk/node (make test does it)")
		}
		cmd := exec.CommandContext(t.Context(), "node", "main.mjs")
		cmd.Dir = "testdata/sdk/node"
		cmd.Env = append(os.Environ(), "WEIR_URL="+d.url, "WEIR_API_KEY="+d.key)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		} else {
			t.Logf("%s", out)
		}
	})
}
