package enginesim_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/tidwall/gjson"
)

const flatTool = `{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}`

// respond returns the answer of /v1/responses: a document, or its events.
func (r rig) respond(body, fault string) (document gjson.Result, events []gjson.Result) {
	r.t.Helper()
	resp := r.do(r.t.Context(), http.MethodPost, "/v1/responses", `{"model":"sim-chat",`+body+`}`, "X-Sim-Fault", fault)
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	for block := range bytes.SplitSeq(raw, []byte("\n\n")) {
		name, data, ok := bytes.Cut(block, []byte("\ndata: "))
		if !ok {
			continue
		}
		e := gjson.ParseBytes(data)
		if string(name) != "event: "+e.Get("type").Str {
			r.t.Errorf("%s names %s", name, data)
		}
		events = append(events, e)
	}
	return gjson.ParseBytes(raw), events
}

func TestAResponseSaysWhatAChatWould(t *testing.T) {
	t.Parallel()
	chat := instant(t).ok("/v1/chat/completions", ask("What is the weather?", `,"tools":[`+weatherTool+`],"reasoning_effort":"low","seed":3`))
	document, _ := instant(t).respond(`"input":"What is the weather?","tools":[`+flatTool+`],"reasoning":{"effort":"low"}`, "")
	if got := document.Get("output.#.type").Raw; got != `["reasoning","function_call"]` || document.Get("output.1.name").Str != chat.Choices[0].Message.ToolCalls[0].Function.Name {
		t.Errorf("the response %s, and a chat %+v", document.Raw, chat.Choices[0])
	}
	if u := document.Get("usage"); u.Get("total_tokens").Int() != u.Get("input_tokens").Int()+u.Get("output_tokens").Int() || u.Get("output_tokens_details.reasoning_tokens").Int() == 0 {
		t.Errorf("usage %s", u.Raw)
	}
}

// The official client is held to the events, and a next turn to the cache.
func TestTheOpenAIClientReadsAResponse(t *testing.T) {
	t.Parallel()
	r := instant(t)
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("unused"))
	stream := client.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{
		Model: "sim-chat", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Hello" + strings.Repeat(" dear river", 40))}, MaxOutputTokens: openai.Int(16),
	})
	text := ""
	var last responses.ResponseStreamEventUnion
	for stream.Next() {
		if last = stream.Current(); last.Type == "response.output_text.delta" {
			text += last.Delta
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if last.Type != "response.incomplete" || last.Response.OutputText() != text || last.Response.IncompleteDetails.Reason != "max_output_tokens" || last.Response.Usage.OutputTokens != 16 {
		t.Errorf("the end is %s", last.RawJSON())
	}
	next, _ := r.respond(`"input":[{"role":"user","content":`+quoteJSON("Hello"+strings.Repeat(" dear river", 40))+`},`+last.Response.Output[0].RawJSON()+`,{"role":"user","content":"And?"}]`, "")
	if cached, before := next.Get("usage.input_tokens_details.cached_tokens").Int(), last.Response.Usage.InputTokens; cached < before-16 {
		t.Errorf("%d of the earlier %d tokens were cached", cached, before)
	}
}

func TestAResponsesFaults(t *testing.T) {
	t.Parallel()
	const body = `"input":"What is the weather?","stream":true,"reasoning":{"effort":"low"},"tools":[` + flatTool + `]`
	count := func(events []gjson.Result, kind string) (n int) {
		for _, e := range events {
			if e.Get("type").Str == "response."+kind {
				n++
			}
		}
		return n
	}
	_, sound := instant(t).respond(body, "")
	end := func(events []gjson.Result) gjson.Result { return events[len(events)-1].Get("response") }
	if count(sound, "output_item.done") != 2 || end(sound).Get("status").Str != "completed" || end(sound).Get("output.#").Int() != 2 {
		t.Fatalf("without a fault: %s", sound)
	}
	ids := func(events []gjson.Result) (all []string) {
		for _, e := range events {
			if e.Get("type").Str == "response.output_item.added" {
				all = append(all, e.Get("item.id").Str)
			}
		}
		return all
	}
	for fault, shows := range map[string]func(events []gjson.Result) bool{
		"no-item-done":       func(e []gjson.Result) bool { return count(e, "output_item.done") == 0 },
		"wrong-sequence":     func(e []gjson.Result) bool { return e[0].Get("sequence_number").Int() != 0 },
		"same-ids":           func(e []gjson.Result) bool { all := ids(e); return all[0] == all[1] },
		"foreign-ids":        func(e []gjson.Result) bool { return ids(e)[0] != end(e).Get("output.0.id").Str },
		"items-out-of-order": func(e []gjson.Result) bool { return end(e).Get("output.0.type").Str == "function_call" },
		"no-usage":           func(e []gjson.Result) bool { return end(e).Get("usage").Type == gjson.Null },
		"empty-output":       func(e []gjson.Result) bool { return end(e).Get("output").Raw == "[]" },
		"odd-parts":          func(e []gjson.Result) bool { return count(e, "reasoning_part.added") == 1 },
		"no-done":            func(e []gjson.Result) bool { return count(e, "completed") == 0 },
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			if shows(sound) {
				t.Fatal("so does a sound stream")
			}
			if _, events := instant(t).respond(body, fault); !shows(events) {
				t.Errorf("not shown by %s", events)
			}
		})
	}
}

func TestWhatAResponseCantBe(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`"input":"x","previous_response_id":"resp_1"`: "NotFoundError",
		`"input":"x","background":true`:               "BadRequestError",
		`"input":5`:                                   "BadRequestError",
		`"input":[{"type":"item_reference"}]`:         "BadRequestError",
		`"input":"x","tools":[{"type":"mcp"}]`:        "BadRequestError",
		`"input":"x","cache_salt":""`:                 "BadRequestError",
	} {
		if document, _ := instant(t).respond(body, ""); document.Get("error.type").Str != want {
			t.Errorf("%s: %s", body, document.Raw)
		}
	}
}

func quoteJSON(s string) string { return string(gjson.AppendJSONString(nil, s)) }
