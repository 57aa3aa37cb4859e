package enginesim

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// call is one request for an answer.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	body  []byte
	fault fault
	rec   *Request

	rank    *machine
	fetched *fetched // its prompt was computed elsewhere; nil: it wasn't
}

// inference reads the body, meets the faults that come before any work, and
// answers errors in vLLM's shape.
func (e *Engine) inference(serve func(*call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{w: w, r: r}
		err := e.open(c)
		if err == nil {
			c.rank, err = e.rank(r)
		}
		if err == nil {
			c.fetched, err = e.fetch(r.Context(), c)
		}
		if err == nil {
			err = serve(c)
		}
		if err == nil {
			return
		}
		api, answered := errors.AsType[*apiError](err)
		switch {
		case answered:
			e.finish(c, "refused", 0)
			api.write(w)
		case errors.Is(err, errReset):
			reset(w)
		default: // cut by a fault, or the caller has left
			panic(http.ErrAbortHandler)
		}
	}
}

func (e *Engine) open(c *call) error {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBodyBytes))
	c.rec = e.log.add(c.r, body)
	if err != nil {
		return &apiError{status: http.StatusRequestEntityTooLarge, kind: "BadRequestError", message: err.Error()}
	}
	c.body = body
	c.fault = e.faults.take()
	if text := c.r.Header.Get("X-Sim-Fault"); text != "" {
		if c.fault, err = parseFault(text); err != nil {
			return badRequest("x-sim-fault", "%v", err)
		}
	}
	if c.fault.resetEarly {
		e.finish(c, "reset-before-headers", 0)
		return errReset
	}
	if c.fault.status != 0 {
		return &apiError{
			status: c.fault.status, kind: "SimulatedError", retryAfter: c.fault.retryAfter,
			message: "simulated fault: " + http.StatusText(c.fault.status),
		}
	}
	if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &apiError{
			status: http.StatusUnsupportedMediaType, kind: "UnsupportedMediaType",
			message: "Unsupported Media Type: Only 'application/json' is allowed",
		}
	}
	return nil
}

// finish writes the request's end into the log.
func (e *Engine) finish(c *call, outcome string, generated int) { e.log.end(c.rec, outcome, generated) }

func decodeJSON(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return badRequest(wrong.Field, "Input should be a valid %s: %s", wrong.Type, wrong.Field)
		}
		return badRequest("", "JSON decode error: %v", err)
	}
	return nil
}

func (e *Engine) known(model string) error {
	if model == "" || slices.Contains(e.cfg.Models, model) {
		return nil
	}
	return &apiError{
		status: http.StatusNotFound, kind: "NotFoundError", param: "model",
		message: "The model `" + model + "` does not exist.",
	}
}

// sampling holds the fields that chat and completions share. What a simulated
// model can't obey (temperature and its like) is accepted and ignored.
type sampling struct {
	Model               string    `json:"model"`
	N                   *int      `json:"n"`
	MaxTokens           *int      `json:"max_tokens"`
	MaxCompletionTokens *int      `json:"max_completion_tokens"`
	MinTokens           int       `json:"min_tokens"`
	IgnoreEOS           bool      `json:"ignore_eos"`
	Stop                stopList  `json:"stop"`
	IncludeStop         bool      `json:"include_stop_str_in_output"`
	Seed                int64     `json:"seed"`
	Temperature         *float64  `json:"temperature"`
	TopP                *float64  `json:"top_p"`
	CacheSalt           *string   `json:"cache_salt"`
	Priority            int       `json:"priority"`
	Stream              bool      `json:"stream"`
	KVTransfer          *transfer `json:"kv_transfer_params"`
	CachedDetails       bool      `json:"return_cached_tokens_details"`
	StreamOptions       *struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
}

// stopList is a string or a list of them.
type stopList []string

// UnmarshalJSON accepts both forms.
func (s *stopList) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*s = make(stopList, 1)
		return json.Unmarshal(b, &(*s)[0])
	}
	return json.Unmarshal(b, (*[]string)(s))
}

func (s *sampling) choices() int {
	if s.N == nil {
		return 1
	}
	return *s.N
}

func (s *sampling) salt() string {
	if s.CacheSalt == nil {
		return ""
	}
	return *s.CacheSalt
}

// limit returns the most tokens that the caller wants, 0 when it doesn't say.
func (s *sampling) limit() int {
	for _, v := range []*int{s.MaxCompletionTokens, s.MaxTokens} {
		if v != nil {
			return *v
		}
	}
	return 0
}

func (s *sampling) validate() error {
	for _, f := range []struct {
		name string
		v    *int
	}{{"max_tokens", s.MaxTokens}, {"max_completion_tokens", s.MaxCompletionTokens}} {
		if f.v != nil && *f.v < 1 {
			return badRequest(f.name, "%s must be at least 1, got %d.", f.name, *f.v)
		}
	}
	if n := s.choices(); n < 1 || n > maxChoices {
		return badRequest("n", "n must be from 1 to %d, got %d.", maxChoices, n)
	}
	if limit := s.limit(); s.MinTokens < 0 || limit > 0 && s.MinTokens > limit {
		return badRequest("min_tokens", "min_tokens must be from 0 to max_tokens=%d, got %d.", limit, s.MinTokens)
	}
	if t := s.Temperature; t != nil && (*t < 0 || *t > 2) {
		return badRequest("temperature", "temperature must be in [0, 2], got %v.", *t)
	}
	if p := s.TopP; p != nil && (*p <= 0 || *p > 1) {
		return badRequest("top_p", "top_p must be in (0, 1], got %v.", *p)
	}
	if s.CacheSalt != nil && *s.CacheSalt == "" {
		return badRequest("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	if s.StreamOptions != nil && !s.Stream {
		return badRequest("stream_options", "Stream options can only be defined when `stream=True`.")
	}
	if slices.ContainsFunc(s.Stop, func(x string) bool { return x == "" }) {
		return badRequest("stop", "stop cannot contain an empty string.")
	}
	return nil
}

// order turns the shared fields into an order for a prompt of so many tokens.
func (e *Engine) order(s *sampling, prompt int) (order, error) {
	if err := e.cfg.Priorities.check(s.Priority); err != nil {
		return order{}, err
	}
	limit := s.limit()
	if asked := prompt + max(limit, s.MinTokens, 1); asked > e.cfg.ContextLength {
		return order{}, badRequest("", "This model's maximum context length is %d tokens. However, you requested %d tokens "+
			"(%d in the messages, %d in the completion). Please reduce the length of the messages or completion.",
			e.cfg.ContextLength, asked, prompt, asked-prompt)
	}
	room := e.cfg.ContextLength - prompt
	if limit == 0 {
		limit = room
	}
	return order{
		maxTokens: min(limit, room), minTokens: s.MinTokens, ignoreEOS: s.IgnoreEOS,
		stop: s.Stop, includeStop: s.IncludeStop,
	}, nil
}

// answerID is vLLM's: the kind and the caller's request id, if one came.
func answerID(kind string, r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return kind + "-" + id
	}
	return kind + "-" + strings.ToLower(randomText())
}
