// Package enginesim is a simulated model server that behaves like vLLM:
// continuous batching, a block prefix cache, token timing that depends on
// load, vLLM's endpoints, metrics and error shapes, and faults on demand. It
// serves development, tests and benchmarks. It has no model: its text is made
// of random words, and it says everywhere that it is simulated.
//
// A prompt can ask for a tool call: when tools were sent and the last user
// message contains "[tool]", "[tool:NAME]" or a word of a tool's name, the answer
// is a call.
package enginesim

import (
	"cmp"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	serverName    = "enginesim (simulated vLLM)"
	simVersion    = "0.0.0-sim"
	fingerprint   = "sim"
	maxBodyBytes  = 64 << 20
	maxChoices    = 128
	maxTopChoices = 20
)

// ReasoningField names the field in which reasoning is sent.
type ReasoningField string

// The fields that engines use: vLLM's present one, the older one, and both at
// once for clients that can't tell.
const (
	FieldReasoning        ReasoningField = "reasoning"
	FieldReasoningContent ReasoningField = "reasoning_content"
	FieldBoth             ReasoningField = "both"
)

// Config describes one simulated server. The zero value is a pleasant server
// for development: the first token after about 20 ms, then one each 5 ms.
type Config struct {
	Models []string // names that it serves; the first one labels its metrics. Default "sim"
	Seed   uint64   // the same seed and request give the same text

	TTFT        time.Duration // fixed part of the time to the first token. Default 15ms
	ITL         time.Duration // duration of one step, so between two tokens of a stream. Default 5ms
	ITLPerSeq   time.Duration // what each further running sequence adds to a step. Default 20us
	PrefillRate int           // uncached prompt tokens per second. Default 50000
	ZeroLatency bool          // no waiting at all: an answer is made in one step

	MaxNumSeqs       int // sequences that run at once. Default 64
	MaxWaiting       int // sequences that may wait; one more is a 503. Default 4096
	MaxBatchedTokens int // tokens computed in one step. Default 8192
	KVBlocks         int // capacity in blocks of 16 tokens. Default 16384
	HostBlocks       int // of a second tier, for what is evicted. Default 0
	StorageBlocks    int // of a third one. Default 0
	ContextLength    int // tokens of prompt and answer together. Default 32768, never above the KV capacity

	Ranks    int    // data-parallel ranks, each with the capacity above and a cache of its own. Default 1
	Role     string // decode and prefill-decode have a sidecar beside them, which has another server compute a prompt. Default "": it does all of the work
	Revision string // caches of servers of other revisions are refused

	EmbeddingDims  int            // default 256
	Reasoning      bool           // think before each answer, not only when asked to
	ReasoningField ReasoningField // default FieldReasoning
	MetricNames    MetricNames    // whose names its metrics have; with SGLang it tells cached tokens by tier as that does. Default VLLM
	Priorities     Priorities     // what it makes of the priority of requests. Default: it refuses them
	Version        string         // that /version tells. Default "0.0.0-sim"
	KVEvents       bool           // keep what happens in the cache, for Publish
	KeepRequests   int            // how many past requests Requests remembers. Default 64, negative none
}

func (c Config) withDefaults() Config {
	if len(c.Models) == 0 {
		c.Models = []string{"sim"}
	}
	c.TTFT = cmp.Or(c.TTFT, 15*time.Millisecond)
	c.ITL = cmp.Or(c.ITL, 5*time.Millisecond)
	c.ITLPerSeq = cmp.Or(c.ITLPerSeq, 20*time.Microsecond)
	c.PrefillRate = cmp.Or(c.PrefillRate, 50_000)
	c.MaxNumSeqs = cmp.Or(c.MaxNumSeqs, 64)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 4096)
	c.MaxBatchedTokens = cmp.Or(c.MaxBatchedTokens, 8192)
	c.KVBlocks = cmp.Or(c.KVBlocks, 16384)
	c.ContextLength = min(cmp.Or(c.ContextLength, 32768), c.KVBlocks*blockSize)
	c.Ranks = max(c.Ranks, 1)
	c.EmbeddingDims = cmp.Or(c.EmbeddingDims, 256)
	c.ReasoningField = cmp.Or(c.ReasoningField, FieldReasoning)
	c.MetricNames = cmp.Or(c.MetricNames, VLLM)
	c.Version = cmp.Or(c.Version, simVersion)
	c.KeepRequests = cmp.Or(c.KeepRequests, 64)
	return c
}

// Engine is one simulated server. It is an http.Handler; use it behind a
// server that speaks HTTP/1.1, or the connection faults can't act.
type Engine struct {
	cfg     Config
	id      string
	words   vocabulary
	ranks   []*machine
	metrics http.Handler
	faults  faultSwitch
	log     requestLog
	mux     *http.ServeMux

	publisher                publisher
	peers                    *http.Client // to other servers
	offers, fetches, foreign atomic.Int64 // prompts that were computed for others, by others, and by those that aren't understood
}

// New starts a server's machine. Close stops it.
func New(cfg Config) *Engine {
	cfg = cfg.withDefaults()
	registry := prometheus.NewRegistry()
	e := &Engine{
		cfg:     cfg,
		id:      randomText(),
		words:   newVocabulary(),
		metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		log:     requestLog{keep: max(cfg.KeepRequests, 0)},
		mux:     http.NewServeMux(),
		peers:   &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 4 * time.Second}},
	}
	for rank := range cfg.Ranks {
		m := newMetrics(cfg, registry, rank)
		one := newMachine(cfg, m, cfg.cache(rank))
		m.watch(one)
		e.ranks = append(e.ranks, one)
	}
	e.routes()
	return e
}

// Close ends every running request and returns when the machine has stopped.
// Requests that come later are answered with 503.
func (e *Engine) Close() {
	for _, m := range e.ranks {
		m.close()
	}
	e.publisher.close()
	e.peers.CloseIdleConnections()
}

func (e *Engine) routes() {
	e.mux.HandleFunc("POST /v1/chat/completions", e.inference(e.chat))
	e.mux.HandleFunc("POST /v1/responses", e.inference(e.response))
	e.mux.HandleFunc("POST /v1/completions", e.inference(e.completion))
	e.mux.HandleFunc("POST /v1/embeddings", e.inference(e.embedding))
	e.mux.HandleFunc("GET /v1/models", e.listModels)
	e.mux.HandleFunc("POST /tokenize", e.tokenize)
	e.mux.HandleFunc("POST /detokenize", e.detokenize)
	e.mux.HandleFunc("GET /health", e.health)
	e.mux.HandleFunc("/ping", e.health)
	e.mux.HandleFunc("GET /version", e.version)
	e.mux.HandleFunc("GET /load", e.load)
	e.mux.Handle("GET /metrics", e.metrics)
	e.mux.HandleFunc("/admin/faults", e.adminFaults)
	e.mux.HandleFunc("GET /admin/requests", e.adminRequests)
}

// ServeHTTP serves one request.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", serverName)
	if id := r.Header.Get("X-Request-Id"); id != "" {
		w.Header().Set("X-Request-Id", id)
	}
	e.mux.ServeHTTP(w, r)
}
