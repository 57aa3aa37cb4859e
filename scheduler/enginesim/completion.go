package enginesim

import (
	"encoding/json"
)

const maxPrompts = 256

type completionRequest struct {
	sampling

	Prompt   json.RawMessage `json:"prompt"`
	Logprobs *int            `json:"logprobs"`
}

func (e *Engine) completion(c *call) error {
	var r completionRequest
	if err := decodeJSON(c.body, &r); err != nil {
		return err
	}
	if err := e.known(r.Model); err != nil {
		return err
	}
	if err := r.validate(); err != nil {
		return err
	}
	c.fault.quirk.apply(&r.sampling)
	prompts, err := texts("prompt", r.Prompt)
	if err != nil {
		return err
	}
	if len(prompts)*r.choices() > maxChoices {
		return badRequest("n", "at most %d choices in one request.", maxChoices)
	}
	if r.MaxTokens == nil && r.MaxCompletionTokens == nil {
		sixteen := 16 // the API's default, which vLLM keeps for completions
		r.MaxTokens = &sixteen
	}
	j := e.newJob(c, &r.sampling, "cmpl")
	if r.Logprobs != nil {
		if j.logprobs = *r.Logprobs; j.logprobs < 0 || j.logprobs > maxTopChoices {
			return badRequest("logprobs", "logprobs must be from 0 to %d, got %d.", maxTopChoices, j.logprobs)
		}
	}
	for _, prompt := range prompts {
		o, err := e.order(&r.sampling, len(prompt))
		if err != nil {
			return err
		}
		o.wide = c.fault.splitUTF8
		e.addPrompt(j, &r.sampling, prompt, o)
	}
	return e.run(c, j)
}

// texts reads what completions and embeddings take: a string, a list of
// strings, a list of tokens, or a list of such lists. None comes back empty.
func texts(field string, raw json.RawMessage) ([][]token, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, badRequest(field, "Field required: %s", field)
	}
	var (
		one  string
		many []string
		ids  []token
		sets [][]token
	)
	switch {
	case json.Unmarshal(raw, &one) == nil:
		sets = [][]token{appendTokens(nil, one)}
	case json.Unmarshal(raw, &many) == nil:
		for _, text := range many {
			sets = append(sets, appendTokens(nil, text))
		}
	case json.Unmarshal(raw, &ids) == nil:
		sets = [][]token{ids}
	case json.Unmarshal(raw, &sets) == nil:
	default:
		return nil, badRequest(field, "%s should be a string, a list of strings, or lists of tokens.", field)
	}
	if len(sets) == 0 || len(sets) > maxPrompts {
		return nil, badRequest(field, "%s should have 1 to %d items.", field, maxPrompts)
	}
	for i := range sets {
		if len(sets[i]) == 0 {
			sets[i] = []token{startMark} // as a tokenizer's mark of the beginning
		}
	}
	return sets, nil
}
