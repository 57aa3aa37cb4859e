package enginesim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	mrand "math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

var (
	errCallerLeft = errors.New("the caller has left")
	errCut        = errors.New("a fault cut the answer")
	errReset      = errors.New("a fault reset the connection")
)

func randomText() string { return rand.Text() }

// choice is one of a job's answers.
type choice struct {
	index int
	plan  plan
	seq   *sequence

	sent     int  // tokens
	seg, tok int  // place in the plan of the next token
	opened   bool // its role was sent
	finished bool // its finish_reason was sent
	head     []byte
}

// job is a request under way, chat or completion.
type job struct {
	chat    bool
	voice   *voice // of a response; nil: chunks
	id      string
	model   string
	created int64
	machine *machine
	fetched *fetched // its prompt was computed elsewhere
	offers  bool     // its prompt is computed for another engine
	prompts int      // how many
	prompt  int      // tokens of all of them
	choices []*choice
	wake    chan struct{}

	stream, includeUsage, continuousUsage bool
	logprobs                              int // alternatives of each token; negative: no logprobs
	field                                 ReasoningField
	hideReasoning, hideCached             bool
	tellTiers                             bool // as SGLang does, where it is asked to
	storage                               bool // there is a third tier
}

// newJob makes what chat and completions have in common.
func (e *Engine) newJob(c *call, s *sampling, kind string) *job {
	j := &job{
		id: answerID(kind, c.r), model: s.Model, created: time.Now().Unix(),
		wake: make(chan struct{}, 1), stream: s.Stream, logprobs: -1, field: e.cfg.ReasoningField,
		hideCached: c.fault.quirk.hideCached,
		tellTiers:  s.CachedDetails && e.cfg.MetricNames == SGLang, storage: e.cfg.StorageBlocks > 0,
		machine: c.rank, fetched: c.fetched, offers: s.KVTransfer != nil && s.KVTransfer.DoRemoteDecode,
	}
	if j.model == "" {
		j.model = e.cfg.Models[0]
	}
	if s.StreamOptions != nil {
		j.includeUsage = s.StreamOptions.IncludeUsage
		j.continuousUsage = j.includeUsage && s.StreamOptions.ContinuousUsage
	}
	return j
}

// addPrompt plans the choices of one prompt. The text depends on the engine's
// seed, the prompt, the request's seed and the choice, and on nothing else.
func (e *Engine) addPrompt(j *job, s *sampling, prompt []token, o order) {
	h := newHasher(s.salt())
	var hashes []uint64
	digest := xxhash.New()
	var b [8]byte
	for _, t := range prompt {
		hashes = h.add(hashes, t)
		binary.LittleEndian.PutUint64(b[:], uint64(t))
		_, _ = digest.Write(b[:])
	}
	j.prompts++
	j.prompt += len(prompt)
	for i := range s.choices() {
		rng := mrand.New(mrand.NewPCG(e.cfg.Seed^digest.Sum64(), uint64(s.Seed)<<8^uint64(i))) //nolint:gosec // not a secret: it must repeat
		p := e.words.write(rng, o)
		j.choices = append(j.choices, &choice{
			index: len(j.choices), plan: p,
			seq: &sequence{
				prompt: len(prompt), total: p.tokens(), hashes: p.extend(h, hashes), finish: p.finish, wake: j.wake,
				urgency: e.cfg.Priorities.urgency(s.Priority),
				fetched: j.fetched,
			},
		})
		if e.cfg.KVEvents {
			seq := j.choices[len(j.choices)-1].seq
			seq.tokens, seq.salt = p.appendTo(slices.Clone(prompt)), s.salt()
		}
	}
}

// extend continues a prompt's hashes over the answer, which a next turn may repeat.
func (p *plan) extend(h hasher, prompt []uint64) []uint64 {
	hashes := make([]uint64, len(prompt), len(prompt)+p.tokens()/blockSize+1)
	copy(hashes, prompt)
	for i := range p.segments {
		s := &p.segments[i]
		for k := range s.ends {
			hashes = h.add(hashes, packToken(s.piece(k)))
		}
	}
	return hashes
}

// appendTo adds the answer's tokens to those of its prompt.
func (p *plan) appendTo(tokens []token) []token {
	for i := range p.segments {
		s := &p.segments[i]
		for k := range s.ends {
			tokens = append(tokens, packToken(s.piece(k)))
		}
	}
	return tokens
}

func (j *job) sequences() []*sequence {
	seqs := make([]*sequence, len(j.choices))
	for i, c := range j.choices {
		seqs[i] = c.seq
	}
	return seqs
}

// run makes the answer and sends it.
func (e *Engine) run(c *call, j *job) error {
	seqs := j.sequences()
	var s *stream
	if j.stream {
		s = openStream(c)
	}
	if err := pause(c.r.Context(), c.fault.firstToken); err != nil {
		e.finish(c, "aborted", 0)
		return err
	}
	if err := j.machine.submit(seqs...); err != nil {
		if j.stream { // its headers have gone
			e.finish(c, "refused", 0)
			return err
		}
		return unavailable(err)
	}
	defer j.machine.abort(seqs...)

	var err error
	if j.stream {
		err = e.follow(c.r.Context(), j, s)
	} else {
		err = e.whole(c, j)
	}
	if errors.Is(err, errCallerLeft) && c.fault.quirk.keepRunning {
		e.outlive(c.r.Context(), j)
	}
	j.machine.abort(seqs...) // before its tokens are counted
	outcome := "completed"
	switch {
	case errors.Is(err, errCallerLeft):
		outcome = "aborted"
	case err != nil:
		outcome = "fault"
	}
	e.finish(c, outcome, j.made())
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errCallerLeft
	}
}

// made counts the tokens that all choices have so far.
func (j *job) made() int {
	n := 0
	for _, c := range j.choices {
		n += int(c.seq.made.Load())
	}
	return n
}

// cached counts the prompt tokens that came from the prefix cache.
func (j *job) cached() int {
	n := 0
	for i := 0; i < len(j.choices); i += len(j.choices) / j.prompts {
		n += j.choices[i].seq.first
	}
	return n
}

// usage is vLLM's: details are null when there is nothing to detail.
type usage struct {
	PromptTokens     int               `json:"prompt_tokens"`
	TotalTokens      int               `json:"total_tokens"`
	CompletionTokens int               `json:"completion_tokens"`
	PromptDetails    *promptDetails    `json:"prompt_tokens_details"`
	OutputDetails    *reasoningDetails `json:"completion_tokens_details,omitempty"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

type reasoningDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

func (j *job) usage() usage {
	u := usage{PromptTokens: j.prompt, CompletionTokens: j.made()}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	if n := j.cached(); n > 0 && !j.hideCached {
		u.PromptDetails = &promptDetails{CachedTokens: n}
	}
	reasoning := 0
	for _, c := range j.choices {
		reasoning += c.plan.reasoningIn(int(c.seq.made.Load()))
	}
	if reasoning > 0 {
		u.OutputDetails = &reasoningDetails{ReasoningTokens: reasoning}
	}
	return u
}

// wait returns when every sequence is over. Only an end of its own counts: an
// engine that was closed has not answered.
func (e *Engine) wait(ctx context.Context, j *job) error {
	for _, c := range j.choices {
		for !c.seq.over.Load() {
			select {
			case <-j.wake:
			case <-ctx.Done():
				return errCallerLeft
			}
		}
		if int(c.seq.made.Load()) < c.seq.total {
			return errStopped
		}
	}
	return nil
}

// whole sends the answer as one document.
func (e *Engine) whole(c *call, j *job) error {
	if err := e.wait(c.r.Context(), j); err != nil {
		return err
	}
	var answer any
	if j.voice != nil {
		answer = j.voice.document(j)
	} else {
		answer = j.document()
	}
	if j.offers {
		var err error
		if answer, err = e.offer(answer, blocksFor(j.prompt)); err != nil {
			return err
		}
	}
	return c.document(answer)
}

// document writes a JSON answer, with whatever the fault does to it.
func (c *call) document(v any) error {
	f := c.fault
	switch {
	case f.stallAfter > 0:
		<-c.r.Context().Done()
		return errCallerLeft
	case f.resetAfter > 0:
		return errReset
	case f.dieAfter > 0, f.malformed, f.byteAtATime, f.splitUTF8:
		return c.brokenDocument(v)
	}
	writeJSON(c.w, http.StatusOK, v)
	return nil
}
