package gateway_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"weir/gateway"
	"weir/gateway/admission"
)

func TestTokensAreCountedByTheEngineOrNotAtAll(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, engine string
		steps        []step
		call         func(*gateway.Call)
		want         int64
		cause        gateway.Cause
		paths        []string
	}{
		{name: "vLLM, of messages", steps: []step{answers(200, `{"count":17,"max_model_len":4096,"tokens":[]}`)}, want: 17, paths: []string{"/tokenize"}},
		{
			name: "llama.cpp, in two steps", engine: "llamacpp", want: 3, paths: []string{"/apply-template", "/tokenize"},
			steps: []step{answers(200, `{"prompt":"<s>hi \"you\""}`), answers(200, `{"tokens":[1,2,3]}`)},
		},
		{name: "an engine without a tokenizer", steps: []step{answers(404, `{"detail":"Not Found"}`)}, cause: gateway.NotCounted},
		{name: "SGLang that tokenizes plain prompts alone", engine: "sglang", steps: []step{answers(400, `{"message":"prompt: field required"}`)}, cause: gateway.NotCounted},
		{name: "a template that refuses", steps: []step{answers(400, `{"error":{"message":"no such role","code":400}}`)}, cause: gateway.UpstreamRefused},
		{name: "an answer without a count", steps: []step{answers(200, `{"tokens":7}`)}, cause: gateway.UpstreamInvalid},
		{name: "no JSON", steps: []step{answers(200, `17`+"\n}")}, cause: gateway.UpstreamInvalid},
		{name: "an engine that is away", steps: []step{die}, cause: gateway.ConnectFailed},
		{name: "a model that isn't there", steps: []step{die}, call: func(c *gateway.Call) { c.Model = "nope" }, cause: gateway.ModelNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := serve(t, tt.steps...)
			h := build(t, []string{e.URL})
			if tt.engine != "" {
				p, _ := h.snapshot.Pool(poolName)
				p.Endpoints[0].Engine = tt.engine
			}
			n, err := h.CountTokens(t.Context(), h.call(tt.call))
			var got *gateway.Error
			switch {
			case tt.cause == "" && (err != nil || n != tt.want):
				t.Errorf("counted %d, %v; want %d", n, err, tt.want)
			case tt.cause != "" && (!errors.As(err, &got) || got.Cause != tt.cause):
				t.Errorf("error %v, want %s", err, tt.cause)
			}
			for i, path := range tt.paths {
				r := e.seen()[i]
				if r.path != path || !gjson.Valid(r.body) || i == 0 && !strings.Contains(r.body, "hello there, engine") {
					t.Errorf("asked at %s: %s", r.path, r.body)
				}
				if r.header.Get("Authorization") == "" || strings.Contains(r.body, `"stream"`) {
					t.Errorf("asked with %v: %s", r.header, r.body)
				}
			}
			h.idle(t)
			if n := len(h.ledger.all()); n != 0 {
				t.Errorf("%d receipts for a count", n)
			}
		})
	}
}

func TestACountTakesAPlaceWithinTheLimits(t *testing.T) {
	t.Parallel()
	h := build(t, []string{serve(t, answers(http.StatusOK, `{"count":1}`)).URL})
	node := []admission.Node{{ID: "ten_a", Concurrency: 1}}
	if v, err := h.limits.Admit(t.Context(), probe("req_other", node)); err != nil || !v.Admitted {
		t.Fatal(err)
	}
	_, err := h.CountTokens(t.Context(), h.call(nil))
	if e, ok := errors.AsType[*gateway.Error](err); !ok || e.Cause != gateway.TooManyAtOnce {
		t.Errorf("beside the one request that the plan allows: %v", err)
	}
}
