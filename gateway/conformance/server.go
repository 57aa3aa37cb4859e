package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"weir/scheduler"
	"weir/scheduler/pool"
)

const (
	askLimit  = 3 * time.Minute // of one question
	maxAnswer = 16 << 20        // bytes of an answer that are read
)

// kinds of engines, as the catalogue names them.
const (
	vllm     = "vllm"
	sglang   = "sglang"
	llamaCPP = "llamacpp"
	sim      = "sim"
	unknown  = "unknown"
)

// server is the one that is asked, and what is known of it.
type server struct {
	cfg     Config
	engine  string
	version string
	model   string
	context int           // tokens that a prompt and its answer may have; 0: unknown
	pace    time.Duration // between two tokens of a stream; 0: unknown
}

// answer is a whole one.
type answer struct {
	status int
	body   []byte
}

func (a answer) get(path string) gjson.Result { return gjson.GetBytes(a.body, path) }

func (a answer) ok() bool { return a.status == http.StatusOK }

// says is the status and the message of an answer that isn't 200, short enough
// for a line.
func (a answer) says() string {
	text := a.get("error.message").Str
	if text == "" {
		text = a.get("message").Str
	}
	if len(text) > 160 {
		text = strings.ToValidUTF8(text[:160], "") + "..."
	}
	if text == "" {
		return fmt.Sprintf("status %d", a.status)
	}
	return fmt.Sprintf("status %d: %s", a.status, text)
}

// do sends a request; a nil body is a GET. The caller closes the answer's body.
func (s *server) do(ctx context.Context, path string, body any) (*http.Response, error) {
	method, reader := http.MethodGet, io.Reader(http.NoBody)
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		method, reader = http.MethodPost, bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.cfg.URL+path, reader)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.cfg.Key != "" {
		req.Header.Set("Authorization", "Bearer "+s.cfg.Key)
	}
	return s.cfg.Client.Do(req)
}

func (s *server) ask(ctx context.Context, path string, body any) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	resp, err := s.do(ctx, path, body)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return answer{resp.StatusCode, b}, err
}

// fields of a request, in JSON.
type fields map[string]any

// chat is a request for an answer to one prompt.
func (s *server) chat(prompt string, tokens int, more fields) fields {
	f := fields{"model": s.model, "max_tokens": tokens, "messages": []fields{{"role": "user", "content": prompt}}}
	maps.Copy(f, more)
	return f
}

const chatPath = "/v1/chat/completions"

var errNotStreamed = errors.New("the answer is no stream of events")

// events opens a stream and calls each with the data of every event until it
// returns false or the stream ends. A refusal is an answer and no error.
func (s *server) events(ctx context.Context, body fields, each func(data []byte) bool) (answer, error) {
	body["stream"] = true
	resp, err := s.do(ctx, chatPath, body)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return answer{resp.StatusCode, b}, err
	}
	got := answer{status: resp.StatusCode}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return got, errNotStreamed
	}
	lines := bufio.NewScanner(io.LimitReader(resp.Body, maxAnswer))
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if ok && !each(bytes.TrimSpace(data)) {
			return got, nil
		}
	}
	return got, lines.Err()
}

// load is what the server's metrics say.
func (s *server) load(ctx context.Context) (scheduler.Load, error) {
	a, err := s.ask(ctx, "/metrics", nil)
	switch {
	case err != nil:
		return scheduler.Load{}, err
	case !a.ok():
		return scheduler.Load{}, errors.New("GET /metrics: " + a.says())
	}
	return pool.ReadLoad(bytes.NewReader(a.body), s.metricNames())
}

// metricNames is whose names the metrics have: a simulated server's are those
// of either engine.
func (s *server) metricNames() string {
	switch s.engine {
	case sim, unknown:
		return ""
	default:
		return s.engine
	}
}

// Looks at the load become rarer: each is work for the server too. llama.cpp
// looks after a caller who waits for a whole answer only when it had nothing
// else to say for a second.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 1600 * time.Millisecond
)

// until looks at the load until it is as wanted. It returns how long that took,
// and false if it was not so within the limit.
func (s *server) until(ctx context.Context, limit time.Duration, wanted func(scheduler.Load) bool) (time.Duration, bool) {
	begin := s.cfg.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if l, err := s.load(ctx); err == nil && wanted(l) {
			return s.cfg.Now().Sub(begin), true
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return limit, false
		}
	}
}
