package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
	"weir/gateway/upstream"
	"weir/scheduler"
)

const (
	// An engine's answer is read up to tokenAnswer bytes and so many for each of
	// the question: each token of a text has one byte of it at least, and a
	// template adds a few thousand.
	tokenAnswer     = 256 << 10
	tokenAnswerEach = 16
	// maxTokenBlocks bounds the chains that are remembered: about 16 MB.
	maxTokenBlocks = 1 << 21
	// tokenFaults in a row have a pool's engines left alone, at first for
	// firstTokenPause.
	tokenFaults     = 3
	firstTokenPause = time.Second
	lastTokenPause  = time.Minute
)

var (
	errNoTokens   = errors.New("no tokens in the answer")
	errLongAnswer = errors.New("more tokens than the prompt can have")
	// errPrompt is the caller's doing: others' prompts may be read all the same.
	errPrompt = errors.New("the prompt has no tokens")
)

// somewhere is a scheduler that knows an endpoint that can be asked something.
type somewhere interface {
	Somewhere() (scheduler.Target, bool)
}

// tokenizers ask engines how they read a prompt: their template and tokenizer
// are the only ones that are right. What is kept of an answer is hashes.
type tokenizers struct {
	engines *engines
	known   *otter.Cache[[sha256.Size]byte, *scheduler.TokenChain]
	asked   *prometheus.CounterVec

	mu     sync.Mutex
	pauses map[string]*tokenPause // by pool
}

// tokenPause is a pool whose engines don't answer.
type tokenPause struct {
	faults int
	pause  time.Duration
	until  time.Time
}

func newTokenizers(e *engines, reg prometheus.Registerer) *tokenizers {
	t := &tokenizers{
		engines: e, pauses: map[string]*tokenPause{},
		known: otter.Must(&otter.Options[[sha256.Size]byte, *scheduler.TokenChain]{
			MaximumWeight: maxTokenBlocks,
			Weigher: func(_ [sha256.Size]byte, c *scheduler.TokenChain) uint32 {
				return uint32(c.Blocks()) + 16 //nolint:gosec // bounded by the answer's size
			},
		}),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_tokenize_total", Help: "Prompts of pools that follow their engines' caches, by whether their tokens were known in time.",
		}, []string{"pool", "outcome"}),
	}
	if reg != nil {
		reg.MustRegister(t.asked)
	}
	return t
}

// tokens finds out the tokens of the exchange's prompt, where its pool wants
// them; nil where that can't be done in time.
func (x *exchange) tokens(ctx context.Context) *scheduler.TokenChain {
	if x.precise.TokenTimeout <= 0 || !x.precise.Enabled {
		return nil
	}
	body := tokenizeBody(&x.call, x.body)
	queue, ok := x.queue.(somewhere)
	if body == nil || !ok {
		return nil
	}
	chain, outcome := x.g.tokenizers.chain(ctx, x.pool, queue, &x.precise, body, x.salt)
	x.g.tokenizers.asked.WithLabelValues(x.pool.Name, outcome).Inc()
	return chain
}

func (t *tokenizers) chain(ctx context.Context, p *catalogue.Pool, queue somewhere, how *scheduler.PreciseCache, body []byte, salt string) (chain *scheduler.TokenChain, outcome string) {
	key := tokenKey(p.Name, salt, how.BlockTokens, body)
	if chain, ok := t.known.GetIfPresent(key); ok {
		return chain, "known"
	}
	if t.paused(p.Name, time.Now()) {
		return nil, "paused"
	}
	target, ok := queue.Somewhere()
	if !ok {
		return nil, "no_endpoint"
	}
	within, cancel := context.WithTimeout(ctx, how.TokenTimeout)
	defer cancel()
	tokens, err := t.ask(within, p, target, body)
	if ctx.Err() != nil {
		return nil, "left"
	}
	if errors.Is(err, errPrompt) {
		return nil, "refused"
	}
	t.learn(p.Name, err, time.Now())
	switch {
	case within.Err() != nil:
		return nil, "late"
	case err != nil:
		return nil, "failed"
	}
	chain = how.Chain(tokens, salt)
	t.known.Set(key, chain)
	return chain, "asked"
}

// tokenKey keeps tenants apart by their salts.
func tokenKey(pool, salt string, block int, body []byte) (key [sha256.Size]byte) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d:%s %d:%s %d ", len(pool), pool, len(salt), salt, block)
	_, _ = h.Write(body)
	h.Sum(key[:0])
	return key
}

func (t *tokenizers) paused(pool string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pauses[pool]
	return p != nil && now.Before(p.until)
}

// learn counts failures in a row, so that a pool whose engines don't answer
// costs its requests nothing.
func (t *tokenizers) learn(pool string, err error, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.pauses[pool]
	switch {
	case err == nil:
		delete(t.pauses, pool)
		return
	case p == nil:
		p = &tokenPause{}
		t.pauses[pool] = p
	}
	if p.faults++; p.faults >= tokenFaults {
		p.pause = min(max(2*p.pause, firstTokenPause), lastTokenPause)
		p.until = now.Add(p.pause)
	}
}

// ask has an endpoint read a prompt.
func (t *tokenizers) ask(ctx context.Context, p *catalogue.Pool, target scheduler.Target, body []byte) ([]uint64, error) {
	endpoint := p.Endpoint(target.Endpoint)
	to := newDestination(target, &endpoint)
	to.path, to.accept, to.requestID = "/tokenize", "application/json", "tokenize."+rand.Text()
	resp, err := t.engines.post(ctx, &upstream.Trip{}, to, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	most := tokenAnswer + tokenAnswerEach*len(body)
	answer, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return nil, fmt.Errorf("tokenize: status %d: %w", resp.StatusCode, errPrompt)
	default:
		return nil, fmt.Errorf("tokenize: status %d", resp.StatusCode)
	}
	if len(answer) > most {
		return nil, errLongAnswer
	}
	return tokensIn(answer)
}

// tokensIn reads vLLM's answer.
func tokensIn(answer []byte) ([]uint64, error) {
	list := gjson.GetBytes(answer, "tokens")
	if !list.IsArray() {
		return nil, errNoTokens
	}
	tokens := make([]uint64, 0, len(list.Raw)/5)
	for n, in, i := uint64(0), false, 0; i < len(list.Raw); i++ {
		switch c := list.Raw[i]; {
		case c >= '0' && c <= '9':
			n, in = 10*n+uint64(c-'0'), true
		case c == ',' || c == ']' || c == ' ' || c == '[' || c == '\n':
			if in {
				tokens = append(tokens, n)
			}
			n, in = 0, false
		default:
			return nil, errNoTokens
		}
	}
	if len(tokens) == 0 {
		return nil, errPrompt
	}
	return tokens, nil
}

// tokenizeBody is the request for a prompt's tokens, made of what is sent to the
// engine; nil for prompts of which these don't tell all: with media, several at
// once, or for other operations.
func tokenizeBody(c *Call, body []byte) []byte {
	var members []string
	switch {
	case c.MediaBytes > 0:
		return nil
	case c.Operation == Chat:
		members = []string{
			"model", "messages", "tools", "chat_template", "chat_template_kwargs", "reasoning_effort",
			"add_generation_prompt", "continue_final_message", "add_special_tokens",
		}
	case c.Operation == Completions && gjson.GetBytes(body, "prompt").Type == gjson.String:
		members = []string{"model", "prompt", "add_special_tokens"}
	default:
		return nil
	}
	out := make([]byte, 0, len(body))
	for i, v := range gjson.GetManyBytes(body, members...) {
		if !v.Exists() {
			continue
		}
		sep := byte(',')
		if len(out) == 0 {
			sep = '{'
		}
		out = append(append(append(append(append(out, sep), '"'), members[i]...), `":`...), v.Raw...)
	}
	return append(out, '}')
}
