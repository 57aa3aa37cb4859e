package inference

import (
	"weir/api/inference/jsonscan"
	"weir/gateway"
)

// action is what becomes of a top-level member. A member that is null counts
// as absent, except where it is required.
type action int

const (
	pass    action = iota // checked and forwarded as it came
	require               // forwarded, and the request needs it
	take                  // used by the gateway; the engine doesn't see it
	ignored               // dropped, and named in x-weir-ignored
	refused               // 400 unsupported_parameter
)

// rule is one row of the policy.
type rule struct {
	name   string
	action action
	read   func(*parse) // reads and checks the value; nil: any value
	why    string       // of a refusal: what to do instead
}

// policy has the rows of one operation by name. A member without a row is
// ignored, as if it had one: a fresh body is built from this table alone, so
// nothing that we have not thought about reaches an engine.
type policy map[string]rule

func policies() map[gateway.Operation]policy {
	return map[gateway.Operation]policy{
		gateway.Chat:        newPolicy(commonRules(), samplingRules(), chatRules()),
		gateway.Completions: newPolicy(commonRules(), samplingRules(), completionsRules()),
		gateway.Embeddings:  newPolicy(commonRules(), embeddingsRules()),
	}
}

func newPolicy(groups ...[]rule) policy {
	table := policy{}
	for _, rules := range groups {
		for _, r := range rules {
			table[r.name] = r
		}
	}
	return table
}

// commonRules hold for every operation.
func commonRules() []rule {
	rules := []rule{
		{name: "model", action: take, read: (*parse).readModel},
		{name: "service_tier", action: take, read: (*parse).readTier},
		{name: "user", action: ignored},
		{name: "metadata", action: take, read: func(p *parse) { p.Skip() }},
		{name: "safety_identifier", action: ignored},
		// A caller's salt or priority must never count; that they are sent is no fault.
		{name: "cache_salt", action: ignored},
		{name: "priority", action: ignored},
	}
	const (
		internal = "It belongs to the engines' own protocol."
		template = "The model's own chat template is used; 'chat_template_kwargs' sets what the model lists."
		prompt   = "Send text or token ids in the request's documented parameters."
		limits   = "Requests that are too long are refused; shorten the input."
		format   = "Use 'response_format' with a JSON schema."
	)
	for why, names := range map[string][]string{
		internal: {
			"request_id", "rid", "extra_key", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "session_params", "session_id",
			"bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank",
			"logits_processors", "custom_logit_processor", "custom_params", "lora_path", "mm_processor_kwargs", "media_io_kwargs",
			"images_config", "return_hidden_states", "return_routed_experts", "return_token_ids", "return_tokens_as_token_ids",
			"prompt_logprobs", "use_beam_search",
		},
		template: {"chat_template", "documents", "add_generation_prompt", "continue_final_message"},
		prompt:   {"prompt_embeds", "input_embeds", "input_ids"},
		limits:   {"truncate_prompt_tokens"},
		format:   {"structured_outputs", "guided_regex", "guided_grammar", "guided_choice", "structural_tag", "regex", "ebnf", "json_schema"},
	} {
		for _, name := range names {
			rules = append(rules, rule{name: name, action: refused, why: why})
		}
	}
	return rules
}

// samplingRules hold for chat and completions.
func samplingRules() []rule {
	return []rule{
		{name: "stream", action: take, read: func(p *parse) { p.call.Stream = p.readBool() }},
		{name: "stream_options", action: take, read: (*parse).readStreamOptions},
		{name: "temperature", read: decimal(0, 2)},
		{name: "top_p", read: decimal(0, 1)},
		{name: "presence_penalty", read: decimal(-2, 2)},
		{name: "frequency_penalty", read: decimal(-2, 2)},
		{name: "n", read: func(p *parse) { p.call.Choices = p.readInteger(1, maxChoices) }},
		{name: "max_tokens", read: func(p *parse) { p.maxTokens = p.readInteger(1, maxOutput) }},
		{name: "stop", read: (*parse).readStop},
		{name: "seed", read: integer(-1<<63, 1<<63-1)},
		{name: "logit_bias", read: (*parse).readLogitBias},
		// What callers of open models send beyond OpenAI's parameters.
		{name: "top_k", read: integer(-1, 1<<20)},
		{name: "min_p", read: decimal(0, 1)},
		{name: "repetition_penalty", read: decimal(0.01, 10)},
		{name: "min_tokens", read: func(p *parse) { p.minTokens = p.readInteger(0, maxOutput) }},
		{name: "stop_token_ids", read: (*parse).readTokenIDs},
		{name: "include_stop_str_in_output", read: boolean},
		{name: "skip_special_tokens", read: boolean},
		{name: "spaces_between_special_tokens", read: boolean},
		{name: "response_format", read: (*parse).readResponseFormat},
		{name: "guided_json", read: (*parse).readGuidedJSON},
	}
}

func chatRules() []rule {
	return []rule{
		{name: "messages", action: require, read: (*parse).readMessages},
		{name: "max_completion_tokens", read: func(p *parse) { p.maxCompletionTokens = p.readInteger(1, maxOutput) }},
		{name: "logprobs", read: func(p *parse) { p.logprobs = p.readBool() }},
		{name: "top_logprobs", read: func(p *parse) { p.topLogprobs = 1 + p.readInteger(0, 20) }},
		{name: "tools", read: (*parse).readTools},
		{name: "tool_choice", read: (*parse).readToolChoice},
		{name: "parallel_tool_calls", read: boolean},
		{name: "reasoning_effort", read: (*parse).readEffort},
		{name: "chat_template_kwargs", read: (*parse).readTemplateKwargs},
		{name: "modalities", action: take, read: (*parse).readModalities},
		{name: "store", action: take, read: func(p *parse) { p.store = p.readBool() }},
		{name: "verbosity", action: ignored},
		{name: "prediction", action: ignored},
		{name: "prompt_cache_key", action: take, read: func(p *parse) { p.call.Affinity = string(jsonscan.Unquote(p.readText(maxName))) }},
		{name: "prompt_cache_options", action: ignored},
		{name: "prompt_cache_retention", action: ignored},
		{name: "audio", action: refused, why: "Models answer in text."},
		{name: "web_search_options", action: refused, why: "There is no web search; give the model a tool of your own."},
		{name: "moderation", action: refused, why: "Moderate before or after the request."},
		{name: "functions", action: refused, why: "Use 'tools'."},
		{name: "function_call", action: refused, why: "Use 'tool_choice'."},
	}
}

func completionsRules() []rule {
	return []rule{
		{name: "prompt", action: require, read: (*parse).readPrompt},
		{name: "logprobs", read: integer(0, 20)},
		{name: "echo", action: take, read: (*parse).readEcho},
		{name: "best_of", action: take, read: unlessOne},
		{name: "suffix", action: take, read: unlessEmpty},
	}
}

func embeddingsRules() []rule {
	return []rule{
		{name: "input", action: require, read: (*parse).readInput},
		{name: "encoding_format", read: oneOf("float", "base64")},
		{name: "dimensions", read: integer(1, 1<<16)},
	}
}
