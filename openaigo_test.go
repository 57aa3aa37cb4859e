package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/conversations"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/tidwall/gjson"
)

// openaiGo plays the features with the official Go SDK.
func openaiGo(t *testing.T, r *rig, features []string) map[string]gjson.Result {
	t.Helper()
	answers := map[string]gjson.Result{}
	for _, feature := range features {
		res, calls, err := goFeature(t, r, feature)
		answers[feature] = goTold(t, res, calls, err)
	}
	return answers
}

func goFeature(t *testing.T, r *rig, feature string) (*responses.Response, []string, error) {
	t.Helper()
	client := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey(r.key), option.WithMaxRetries(0))
	ask := func(model, prompt string) responses.ResponseNewParams {
		return responses.ResponseNewParams{Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(prompt)}}
	}
	stream := func(p responses.ResponseNewParams) (*responses.Response, []string, error) {
		return goStream(t, client, p)
	}
	switch feature {
	case "streamed text":
		return stream(ask("scripted", "[play text]"))
	case "text in one document":
		res, err := client.Responses.New(t.Context(), ask("scripted", "[play text]"))
		return res, nil, err
	case "reasoning":
		return stream(ask("scripted", "[play reasoning]"))
	case "a tool loop":
		return goLoop(t, client, "[play loop]")
	case "parallel calls":
		return goLoop(t, client, "[play parallel]")
	case "refusals":
		return stream(ask("scripted", "[play refusal]"))
	case "an answer that is cut off":
		return stream(ask("scripted", "[play length]"))
	case "an engine that breaks off":
		return stream(ask("flaky", "[play broken]"))
	case "an engine that reports an error":
		return stream(ask("flaky", "[play fault]"))
	case "a rate limit":
		limited := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey(r.newKey(t, "--rpm", "1")), option.WithMaxRetries(0))
		if _, err := limited.Responses.New(t.Context(), ask("scripted", "[play text]")); err != nil {
			return nil, nil, err
		}
		res, err := limited.Responses.New(t.Context(), ask("scripted", "[play text]"))
		return res, nil, err
	case "no credit left":
		wall := newPaywall(t, r)
		poor := openai.NewClient(option.WithBaseURL(wall.url+"/v1"), option.WithAPIKey(r.key))
		res, err := poor.Responses.New(t.Context(), ask("scripted", "[play text]"))
		wall.askedOnce(t)
		return res, nil, err
	case "a model at capacity":
		return stream(ask("busy", "[play busy]"))
	case "going on from a response":
		first, _, err := stream(ask("scripted", "[play twice]"))
		if err != nil {
			return nil, nil, err
		}
		next := ask("scripted", "and then?")
		next.PreviousResponseID = openai.String(first.ID)
		return stream(next)
	case "a conversation":
		c, err := client.Conversations.New(t.Context(), conversations.ConversationNewParams{})
		if err != nil {
			return nil, nil, err
		}
		in := responses.ResponseNewParamsConversationUnion{OfString: openai.String(c.ID)}
		one, two := ask("scripted", "[play twice]"), ask("scripted", "and then?")
		one.Conversation, two.Conversation = in, in
		if _, _, err := stream(one); err != nil {
			return nil, nil, err
		}
		return stream(two)
	default:
		return nil, nil, fmt.Errorf("nobody plays %q", feature)
	}
}

// goStream reads a stream to its end: the text of the deltas has to be that of
// the response.
func goStream(t *testing.T, client openai.Client, p responses.ResponseNewParams) (*responses.Response, []string, error) {
	t.Helper()
	events := client.Responses.NewStreaming(t.Context(), p)
	defer func() { _ = events.Close() }()
	heard := ""
	var last *responses.Response
	for events.Next() {
		switch e := events.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			heard += e.Delta
		case responses.ResponseCompletedEvent:
			last = &e.Response
		case responses.ResponseIncompleteEvent:
			last = &e.Response
		case responses.ResponseErrorEvent:
			return nil, nil, errors.New(e.Message)
		}
	}
	if err := events.Err(); err != nil {
		return nil, nil, err
	}
	if last == nil {
		return nil, nil, errors.New("the stream has no end")
	}
	if heard != last.OutputText() {
		t.Errorf("heard %q, and the response says %q", heard, last.OutputText())
	}
	return last, nil, nil
}

// goLoop answers calls until there are none.
func goLoop(t *testing.T, client openai.Client, prompt string) (*responses.Response, []string, error) {
	t.Helper()
	var calls []string
	p := responses.ResponseNewParams{
		Model: "scripted",
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(prompt)},
		Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", map[string]any{"type": "object"}, false)},
	}
	for {
		res, _, err := goStream(t, client, p)
		if err != nil {
			return nil, calls, err
		}
		var outputs responses.ResponseInputParam
		for _, item := range res.Output {
			if call, ok := item.AsAny().(responses.ResponseFunctionToolCall); ok {
				calls = append(calls, call.Name+" "+call.Arguments)
				output := responses.ResponseInputItemParamOfFunctionCallOutput("sunny")
				output.OfFunctionCallOutput.CallID = param.NewOpt(call.CallID)
				outputs = append(outputs, output)
			}
		}
		if len(outputs) == 0 {
			return res, calls, nil
		}
		p.PreviousResponseID = param.NewOpt(res.ID)
		p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: outputs}
	}
}

// goTold writes an answer down as the other clients do.
func goTold(t *testing.T, res *responses.Response, calls []string, err error) gjson.Result {
	t.Helper()
	told := map[string]any{"outcome": "error", "calls": calls}
	refused, answered := errors.AsType[*openai.Error](err)
	switch {
	case answered:
		told["status"], told["code"], told["message"] = refused.StatusCode, refused.Code, refused.Message
	case err != nil:
		told["message"] = err.Error()
	default:
		var reasoning, refusal strings.Builder
		for _, item := range res.Output {
			for _, part := range item.AsReasoning().Content {
				if item.Type == "reasoning" {
					reasoning.WriteString(part.Text)
				}
			}
			for _, part := range item.AsMessage().Content {
				if part.Type == "refusal" {
					refusal.WriteString(part.Refusal)
				}
			}
		}
		told["outcome"], told["text"], told["reasoning"], told["refusal"] = res.Status, res.OutputText(), reasoning.String(), refusal.String()
	}
	raw, err := json.Marshal(told)
	if err != nil {
		t.Error(err)
	}
	return gjson.ParseBytes(raw)
}
