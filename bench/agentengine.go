package main

import (
	"bytes"
	"container/list"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"
)

// What the engines of agents are like. They are as cheap as they can be while
// they keep account of prefixes: no model, constant text, and a time to the
// first token that what wasn't cached decides.
const (
	agentEngines  = 8
	engineBlock   = 256     // bytes of a cache block: 64 tokens
	engineBlocks  = 100_000 // of each engine's cache
	agentWait     = 50 * time.Millisecond
	agentPrefill  = 16_000 // tokens a second
	agentChunks   = 25
	agentGap      = 100 * time.Millisecond
	agentSentence = "the next step is to read the file and run the tests again; " // each chunk says it
)

// PrefixStats is what the engines found.
type PrefixStats struct {
	Requests   int   `json:"requests"`
	Blocks     int   `json:"blocks"`     // of all prompts
	Hits       int   `json:"hits"`       // found in the engine's own cache
	Attainable int   `json:"attainable"` // had been in an earlier prompt at any engine
	ByEngine   []int `json:"by_engine"`  // requests
	Abandoned  int   `json:"abandoned"`  // answers whose caller left
}

// engineSet is several engines behind one address, each under a path of its
// own.
type engineSet struct {
	gap time.Duration // between two pieces of an answer

	mu    sync.Mutex
	all   []*prefixCache
	seen  map[uint64]struct{}
	stats PrefixStats
	live  []int
}

func newEngineSet(gap time.Duration) *engineSet {
	s := &engineSet{gap: gap, seen: map[uint64]struct{}{}, live: make([]int, agentEngines)}
	s.stats.ByEngine = make([]int, agentEngines)
	for range agentEngines {
		s.all = append(s.all, &prefixCache{places: map[uint64]*list.Element{}, order: list.New()})
	}
	return s
}

// prefixCache keeps blocks; the one that was used longest ago goes first.
type prefixCache struct {
	places map[uint64]*list.Element
	order  *list.List // of uint64
}

// take returns how many of the chain's first blocks are there, and has all of
// them afterwards. The chain's end goes before its beginning.
func (c *prefixCache) take(chain []uint64) (hits int) {
	for hits < len(chain) && c.places[chain[hits]] != nil {
		hits++
	}
	for _, c0 := range slices.Backward(chain) {
		if at := c.places[c0]; at != nil {
			c.order.MoveToBack(at)
			continue
		}
		c.places[c0] = c.order.PushBack(c0)
	}
	for c.order.Len() > engineBlocks {
		id, _ := c.order.Remove(c.order.Front()).(uint64)
		delete(c.places, id)
	}
	return hits
}

// chainOf names each whole block of a prompt by all that comes before it.
func chainOf(salt string, prompt []byte) []uint64 {
	chain := make([]uint64, 0, len(prompt)/engineBlock)
	h := xxhash.Sum64String(salt)
	var link [16]byte
	for len(prompt) >= engineBlock {
		putUint64(link[:8], xxhash.Sum64(prompt[:engineBlock]))
		putUint64(link[8:], h)
		h = xxhash.Sum64(link[:])
		chain = append(chain, h)
		prompt = prompt[engineBlock:]
	}
	return chain
}

func putUint64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

// ServeHTTP answers under /e/N, and /_stats for all.
func (s *engineSet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/e/")
	if !ok {
		if r.URL.Path == "/_stats" {
			s.mu.Lock()
			defer s.mu.Unlock()
			_ = json.NewEncoder(w).Encode(s.stats)
		}
		return // probes
	}
	number, path, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n >= agentEngines {
		http.NotFound(w, r)
		return
	}
	switch path {
	case "v1/chat/completions":
		s.chat(w, r, n)
	case "v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"agents","object":"model"}]}`)
	case "metrics":
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprintf(w, "vllm:num_requests_running{model_name=\"agents\"} %d\nvllm:num_requests_waiting{model_name=\"agents\"} 0\nvllm:kv_cache_usage_perc{model_name=\"agents\"} %g\n"+
			"vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%d\"} 1\n", s.live[n], float64(s.all[n].order.Len())/engineBlocks, engineBlock/4, engineBlocks)
	}
}

// chat answers one turn. The first and the last piece of the answer say how
// long the engine had the request by then, in nanoseconds.
func (s *engineSet) chat(w http.ResponseWriter, r *http.Request, n int) {
	began := time.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	prompt := bytes.TrimSuffix([]byte(gjson.GetBytes(body, "messages").Raw), []byte("]"))
	blocks, hits := s.begin(n, chainOf(gjson.GetBytes(body, "cache_salt").String(), prompt))
	whole := false
	defer func() { s.end(n, whole) }()

	uncached := len(prompt)/4 - hits*engineBlock/4
	timer := time.NewTimer(agentWait + time.Duration(uncached)*time.Second/agentPrefill)
	defer timer.Stop()
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	for i := range agentChunks {
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
		timer.Reset(s.gap)
		text := agentSentence
		if i == 0 || i == agentChunks-1 {
			text = fmt.Sprintf("@%d@", time.Since(began).Nanoseconds())
		}
		if _, err := w.Write(agentEvent(`{"index":0,"delta":{"content":"` + text + `"},"logprobs":null,"finish_reason":null}`)); err != nil || rc.Flush() != nil {
			return
		}
	}
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		blocks*engineBlock/4, blocks*engineBlock/4+agentChunks, agentChunks, hits*engineBlock/4)
	_, err = w.Write(bytes.Join([][]byte{
		agentEvent(`{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}`),
		event(agentHead + `],"usage":` + usage + `}`), event("[DONE]"),
	}, nil))
	whole = err == nil && rc.Flush() == nil
}

const agentHead = `{"id":"chatcmpl-agents","object":"chat.completion.chunk","created":1700000000,"model":"agents","choices":[`

func agentEvent(choice string) []byte { return event(agentHead + choice + `]}`) }

func (s *engineSet) begin(n int, chain []uint64) (blocks, hits int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[n]++
	attainable := 0
	for attainable < len(chain) {
		if _, ok := s.seen[chain[attainable]]; !ok {
			break
		}
		attainable++
	}
	for _, id := range chain[attainable:] {
		s.seen[id] = struct{}{}
	}
	hits = s.all[n].take(chain)
	s.stats.Requests++
	s.stats.ByEngine[n]++
	s.stats.Blocks += len(chain)
	s.stats.Hits += hits
	s.stats.Attainable += attainable
	return len(chain), hits
}

func (s *engineSet) end(n int, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[n]--
	if !whole {
		s.stats.Abandoned++
	}
}
