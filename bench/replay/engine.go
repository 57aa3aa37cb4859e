package main

import (
	"slices"
	"time"
)

// model is how an engine behaves: one step computes the next token of each
// request that decodes and a chunk of the prompts that wait, as vLLM's
// scheduler does with chunked prefill.
type model struct {
	prefill   float64       // prompt tokens a second
	step      time.Duration // of a step with nothing in it
	perSeq    time.Duration // further, for each request that decodes
	batched   int           // tokens of a step at most
	sequences int           // requests at once at most
	blocks    int           // of KV memory; 0: no bound
}

// standard is about one H100 with a model of eight billion parameters; the
// rate of prefill is the one that llm-d's filters assume of an endpoint.
func standard(blocks int) model {
	return model{
		prefill: 15_928, step: 8 * time.Millisecond, perSeq: 40 * time.Microsecond,
		batched: 2048, sequences: 256, blocks: blocks,
	}
}

// job is a request at an engine.
type job struct {
	*request
	end func(*job) // told of its end

	holding  holding
	cached   int // prompt tokens that were found
	hits     int // blocks that were found
	computed int // prompt tokens that are there
	chunk    int // of the step under way
	made     int // output tokens

	submitted, admitted, first, last time.Duration
	firstToken                       func(*job)
}

func (j *job) decodes() bool { return j.computed >= j.input }

// engine is one model server in virtual time. It does nothing by itself: who
// drives it calls due when next says.
type engine struct {
	id int
	model
	kv      *kvCache
	waiting []*job
	running []*job // in the order of admission

	came   func(ids []uint64, i int) // told of the i-th block of a prompt, which is new; may be nil
	began  time.Duration             // of the step under way
	each   time.Duration             // of one step
	steps  int                       // that run on without a change: several only while all decode
	gaps   func(class string, gap time.Duration, tokens int)
	served func(engine int, j *job, at time.Duration, prompt, output int) // tokens computed
}

// next is when the steps under way are over; false when the engine idles.
func (e *engine) next() (time.Duration, bool) {
	return e.began + time.Duration(e.steps)*e.each, e.steps > 0
}

// submit queues a job. Steps that run on end with the one under way.
func (e *engine) submit(j *job, now time.Duration) {
	j.submitted = now
	e.waiting = append(e.waiting, j)
	switch {
	case e.steps == 0:
		e.start(now)
	case e.steps > 1:
		e.steps = min(e.steps, int((now-e.began+e.each-1)/e.each))
		e.steps = max(e.steps, 1)
	}
}

// due ends the steps under way and starts the next.
func (e *engine) due(now time.Duration) {
	steps := e.steps
	e.steps = 0
	var over []*job
	for _, j := range e.running {
		switch {
		case j.chunk > 0:
			e.prefilled(j, now)
		case j.decodes():
			e.gaps(j.class, (now-j.last)/time.Duration(steps), steps)
			j.made += steps
			j.last = now
			e.served(e.id, j, now, 0, steps)
		}
		if j.decodes() && j.made >= j.output {
			over = append(over, j)
		}
	}
	for _, j := range over {
		e.running = slices.DeleteFunc(e.running, func(x *job) bool { return x == j })
		e.kv.release(&j.holding)
		j.end(j)
	}
	e.start(now)
}

// prefilled takes a computed chunk. It names the blocks that are complete: the
// last one of a prompt counts as complete with the prompt, whose end is also
// the answer's first token.
func (e *engine) prefilled(j *job, now time.Duration) {
	from := max(j.computed/blockTokens, j.hits)
	j.computed += j.chunk
	to := j.computed / blockTokens
	output := 0
	if j.decodes() {
		to, output = len(j.blocks), 1
		j.made, j.first, j.last = 1, now, now
		j.firstToken(j)
	}
	for i := from; i < to; i++ {
		if e.kv.fill(&j.holding, j.blocks[i]) && e.came != nil {
			e.came(j.blocks, i)
		}
	}
	e.served(e.id, j, now, j.chunk, output)
	j.chunk = 0
}

// start begins a step, if there is anything to do.
func (e *engine) start(now time.Duration) {
	if e.steps > 0 {
		return // an end that was told of has submitted something
	}
	decoding, shortest := 0, 0
	for _, j := range e.running {
		if j.decodes() {
			decoding++
			if left := j.output - j.made; shortest == 0 || left < shortest {
				shortest = left
			}
		}
	}
	prefill := e.chunks(max(e.batched-decoding, 1), now)
	if prefill == 0 && decoding == 0 && len(e.waiting) == 0 {
		return
	}
	e.began, e.steps = now, 1
	e.each = e.step + time.Duration(decoding)*e.perSeq + time.Duration(float64(prefill)/e.prefill*float64(time.Second))
	if prefill == 0 {
		e.steps = max(shortest, 1) // nothing changes before one of them ends
		if len(e.waiting) > 0 {
			e.steps = min(e.steps, 16) // but memory that engines share
		}
	}
}

// chunks shares the step's budget among prompts, those that run first, then
// those that wait as far as there are places and memory.
func (e *engine) chunks(budget int, now time.Duration) (tokens int) {
	take := func(j *job) {
		j.chunk = min(j.input-j.computed, budget-tokens)
		tokens += j.chunk
	}
	for _, j := range e.running {
		if !j.decodes() && tokens < budget {
			take(j)
		}
	}
	for len(e.waiting) > 0 && tokens < budget && len(e.running) < e.sequences {
		j := e.waiting[0]
		if !e.admit(j, now) {
			break
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, j)
		take(j)
	}
	return tokens
}

// admit gives a job its memory, for its answer too: vLLM would take that as it
// grows and put requests back when it ends, which costs more and helps nobody.
func (e *engine) admit(j *job, now time.Duration) bool {
	total := (j.input + j.output + blockTokens - 1) / blockTokens
	h, ok := e.kv.acquire(j.blocks, total-e.kv.match(j.blocks))
	if !ok {
		return false
	}
	j.holding, j.hits, j.admitted = h, len(h.named), now
	// The last token is always computed: its output is the next token.
	j.cached = min(j.hits*blockTokens, j.input-1)
	j.computed = j.cached
	return true
}
