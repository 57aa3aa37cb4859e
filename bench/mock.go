package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
)

// What every answer of the mock says it used. A receipt splits it into
// disjoint classes: 72 uncached, 48 cached, 48 visible output, 16 reasoning.
const (
	promptTokens    = 120
	cachedTokens    = 48
	outputTokens    = 64
	reasoningTokens = 16
)

// Models of the mock: the name chooses how a stream comes.
const (
	burstModel = "bench"       // all events at once
	pacedModel = "bench-paced" // an event each 20 ms
	idleModel  = "bench-idle"  // one event, then silence until the caller leaves
)

const (
	streamEvents = 64 // with content; a finish, a usage and an end mark follow
	paceGap      = 20 * time.Millisecond
)

// Stats is what the mock has done since it started. It is the truth that the
// gateway's receipts are held against.
type Stats struct {
	Active       int `json:"active"`
	Done         int `json:"done"`           // answers that were sent whole
	Cancelled    int `json:"cancelled"`      // answers whose caller left
	Chunks       int `json:"chunks"`         // events with content
	MostOnCancel int `json:"most_on_cancel"` // events of the longest cancelled stream, since _forget
}

func (s Stats) minus(o Stats) Stats {
	return Stats{Active: s.Active, Done: s.Done - o.Done, Cancelled: s.Cancelled - o.Cancelled, Chunks: s.Chunks - o.Chunks}
}

func (s Stats) plus(o Stats) Stats {
	return Stats{Done: s.Done + o.Done, Cancelled: s.Cancelled + o.Cancelled, Chunks: s.Chunks + o.Chunks}
}

// mock is the constant upstream: every answer has the same bytes, so that what
// differs between two targets is the target.
type mock struct {
	document []byte
	events   map[bool][][]byte // by: with running usage

	mu    sync.Mutex
	stats Stats
}

func newMock() *mock {
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}`,
		promptTokens, promptTokens+outputTokens, outputTokens, cachedTokens, reasoningTokens)
	head := `{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":[`
	m := &mock{events: map[bool][][]byte{}}
	m.document = []byte(`{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("words of an answer ", 40) + `","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":` + usage + `}`)
	for _, running := range []bool{false, true} {
		var list [][]byte
		for i := range streamEvents {
			tail := ""
			if running {
				tail = fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, promptTokens, promptTokens+i+1, i+1)
			}
			list = append(list, event(head+`{"index":0,"delta":{"content":" word`+strconv.Itoa(100+i)+`"},"logprobs":null,"finish_reason":null}]`+tail+`}`))
		}
		list = append(list,
			event(head+`{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`),
			event(head+`],"usage":`+usage+`}`),
			event("[DONE]"))
		m.events[running] = list
	}
	return m
}

func event(data string) []byte { return []byte("data: " + data + "\n\n") }

// ServeHTTP answers chat completions, probes and _stats.
func (m *mock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/chat/completions":
		m.chat(w, r)
	case "/_stats":
		m.show(w)
	case "/_forget":
		m.mu.Lock()
		m.stats.MostOnCancel = 0
		m.mu.Unlock()
	case "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+burstModel+`","object":"model"},{"id":"`+pacedModel+`","object":"model"},{"id":"`+idleModel+`","object":"model"}]}`)
	case "/metrics":
		_, _ = io.WriteString(w, "vllm:num_requests_running{model_name=\"bench\"} 0\nvllm:num_requests_waiting{model_name=\"bench\"} 0\nvllm:kv_cache_usage_perc{model_name=\"bench\"} 0\n")
	default:
		w.WriteHeader(http.StatusOK)
	}
}

func (m *mock) show(w http.ResponseWriter) {
	m.mu.Lock()
	s := m.stats
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s)
}

func (m *mock) chat(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.begin()
	if !gjson.GetBytes(body, "stream").Bool() {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(m.document)))
		_, err := w.Write(m.document)
		m.end(err == nil, 0)
		return
	}
	running := bytes.Contains(body, []byte(`"continuous_usage_stats":true`))
	sent, whole := m.stream(r.Context(), w, gjson.GetBytes(body, "model").String(), m.events[running])
	m.end(whole, sent)
}

// stream sends the events, and returns how many with content it made and
// whether it came to the end.
func (m *mock) stream(ctx context.Context, w http.ResponseWriter, model string, events [][]byte) (made int, whole bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	pace := time.NewTicker(paceGap)
	defer pace.Stop()
	for i, e := range events {
		if model == idleModel && i == 1 {
			<-ctx.Done()
		} else if model == pacedModel && i > 0 && i < streamEvents {
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return made, false
		}
		if i < streamEvents {
			made++
		}
		if _, err := w.Write(e); err != nil || rc.Flush() != nil {
			return made, false
		}
	}
	return made, true
}

func (m *mock) begin() {
	m.mu.Lock()
	m.stats.Active++
	m.mu.Unlock()
}

func (m *mock) end(whole bool, made int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Active--
	m.stats.Chunks += made
	if whole {
		m.stats.Done++
		return
	}
	m.stats.Cancelled++
	m.stats.MostOnCancel = max(m.stats.MostOnCancel, made)
}
