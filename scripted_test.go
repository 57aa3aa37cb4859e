package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// scripted is a model server that says word for word what a script tells it
// to. A client's test names the script in the user's message, as "[play NAME]".
// The script's turn is the number of answers that the conversation has since.
type scripted struct {
	url     string
	scripts map[string][]turn

	mu    sync.Mutex
	asked []gjson.Result // bodies, in the order in which they came
	left  map[string]int // failures still to come, by play and turn
}

// turn is one answer of a script.
type turn struct {
	deltas []string // of the only choice, as JSON
	finish string
	breaks int    // how often the connection breaks off instead of finishing
	fault  string // an error that the engine sends instead of finishing
	status int    // an error instead of an answer
}

func say(pieces ...string) (deltas []string) {
	for _, p := range pieces {
		deltas = append(deltas, fmt.Sprintf(`{"content":%q}`, p))
	}
	return deltas
}

func think(pieces ...string) (deltas []string) {
	for _, p := range pieces {
		deltas = append(deltas, fmt.Sprintf(`{"reasoning_content":%q}`, p))
	}
	return deltas
}

// callDelta is a whole call in two pieces.
func callDelta(index int, id, name, arguments string) []string {
	half := len(arguments) / 2
	return []string{
		fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}]}`, index, id, name, arguments[:half]),
		fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%q}}]}`, index, arguments[half:]),
	}
}

var playMark = regexp.MustCompile(`\[play ([a-z0-9-]+)\]`)

func newScripted(t *testing.T, scripts map[string][]turn) *scripted {
	t.Helper()
	s := &scripted{scripts: scripts, left: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ServeHTTP answers under any base path, so that one server can be several
// endpoints.
func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/chat/completions"), strings.HasSuffix(r.URL.Path, "/responses"):
		raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
		if err != nil || !gjson.ValidBytes(raw) {
			http.Error(w, "no JSON", http.StatusBadRequest)
			return
		}
		s.play(w, gjson.ParseBytes(raw))
	case strings.HasSuffix(r.URL.Path, "/models"):
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"scripted","object":"model","owned_by":"vllm"}]}`)
	case strings.HasSuffix(r.URL.Path, "/health"), strings.HasSuffix(r.URL.Path, "/metrics"):
	default:
		http.NotFound(w, r)
	}
}

// find returns the turn that a conversation is at.
func (s *scripted) find(body gjson.Result) (name string, number int) {
	if body.Get("input").Exists() {
		return findNative(body.Get("input"))
	}
	for _, m := range body.Get("messages").Array() {
		switch m.Get("role").Str {
		case "user":
			if all := playMark.FindAllStringSubmatch(m.Get("content").Raw, -1); all != nil {
				name, number = all[len(all)-1][1], 0
			}
		case "assistant":
			number++
		}
	}
	return name, number
}

func (s *scripted) play(w http.ResponseWriter, body gjson.Result) {
	name, number := s.find(body)
	s.mu.Lock()
	s.asked = append(s.asked, body)
	script, known := s.scripts[name]
	if !known || number >= len(script) {
		s.mu.Unlock()
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"message":"no turn %d of script %q","type":"BadRequestError","param":null,"code":400}}`, number, name)
		return
	}
	now := script[number]
	key := fmt.Sprintf("%s %d", name, number)
	if _, begun := s.left[key]; !begun {
		s.left[key] = now.breaks
	}
	breaks := s.left[key] > 0
	s.left[key]--
	s.mu.Unlock()
	if now.status != 0 {
		w.WriteHeader(now.status)
		_, _ = io.WriteString(w, `{"error":{"message":"scripted","type":"ServiceUnavailable","param":null,"code":503}}`)
		return
	}
	if body.Get("input").Exists() {
		streamNative(w, body, now, breaks)
		return
	}
	s.stream(w, body, now, breaks)
}

// stream sends each delta as a chunk of its own, as engines do.
func (s *scripted) stream(w http.ResponseWriter, body gjson.Result, now turn, breaks bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := func(choices, usage string) {
		fmt.Fprintf(w, `data: {"id":"chatcmpl-scripted","object":"chat.completion.chunk","created":1790000000,"model":%s,"choices":%s,"usage":%s}`+"\n\n",
			body.Get("model").Raw, choices, usage)
		_ = http.NewResponseController(w).Flush()
	}
	chunk(`[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]`, "null")
	for _, d := range now.deltas {
		chunk(`[{"index":0,"delta":`+d+`,"finish_reason":null}]`, "null")
	}
	switch {
	case breaks:
		panic(http.ErrAbortHandler)
	case now.fault != "":
		fmt.Fprintf(w, "data: %s\n\n", now.fault)
		return
	}
	chunk(fmt.Sprintf(`[{"index":0,"delta":{},"finish_reason":%q}]`, now.finish), "null")
	reasoning := strings.Count(strings.Join(now.deltas, ""), `"reasoning_content"`)
	chunk("[]", fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"completion_tokens_details":{"reasoning_tokens":%d}}`,
		len(body.Raw)/4, len(now.deltas), len(body.Raw)/4+len(now.deltas), reasoning))
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// requests are the bodies of the requests that played the script.
func (s *scripted) requests(name string) (bodies []gjson.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, body := range s.asked {
		if played, _ := s.find(body); played == name {
			bodies = append(bodies, body)
		}
	}
	return bodies
}
