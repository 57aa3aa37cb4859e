package enginesim

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errQueueFull = errors.New("the waiting queue is full")
	errStopped   = errors.New("the engine has stopped")
)

// sequence is one answer in the making. The machine owns it between submit and
// its end; made and over may be read at any time.
type sequence struct {
	prompt int      // tokens
	total  int      // tokens to make; 0 computes the prompt only
	hashes []uint64 // of the full blocks of prompt and answer; none: not cached
	finish string   // the reason that its end is counted under
	wake   chan struct{}

	made  atomic.Int64
	over  atomic.Bool
	first int // cached tokens found when it was first admitted; fixed once a token was made

	computed int // tokens whose KV is there
	chunk    int // tokens of the step under way
	blocks   []*block
	private  int
	admitted bool

	arrived, ready, last time.Time
}

// want is how many tokens the sequence would compute next.
func (s *sequence) want(everything bool) int {
	target := s.prompt + int(s.made.Load())
	if everything {
		target = s.prompt + max(s.total-1, 0)
	}
	return target - s.computed
}

func (s *sequence) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// machine runs sequences in steps, as vLLM does: each step computes up to
// MaxBatchedTokens, old sequences first, and gives each sequence whose known
// tokens are all computed its next token. One goroutine runs it; no timer and
// no goroutine belongs to a sequence.
type machine struct {
	cfg     Config
	metrics *metrics
	poke    chan struct{} // something to do
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	closed  bool
	kv      *kvCache
	running []*sequence // in the order of admission
	waiting []*sequence
	stats   Stats
}

func newMachine(cfg Config, m *metrics) *machine {
	mc := &machine{
		cfg: cfg, metrics: m, kv: newKVCache(cfg.KVBlocks),
		poke: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go mc.run()
	return mc
}

// submit queues sequences, all or none.
func (m *machine) submit(seqs ...*sequence) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return errStopped
	}
	if len(m.waiting)+len(seqs) > m.cfg.MaxWaiting {
		return errQueueFull
	}
	now := time.Now()
	for _, s := range seqs {
		s.arrived, s.ready = now, now
		if !m.cfg.ZeroLatency {
			s.ready = now.Add(m.cfg.TTFT)
		}
	}
	m.waiting = append(m.waiting, seqs...)
	select {
	case m.poke <- struct{}{}:
	default:
	}
	return nil
}

// abort ends sequences that aren't over. Their slots and blocks are free when
// it returns, and no further token is made for them.
func (m *machine) abort(seqs ...*sequence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range seqs {
		if s.over.Load() {
			continue
		}
		m.waiting = slices.DeleteFunc(m.waiting, func(x *sequence) bool { return x == s })
		m.end(s, "abort")
		m.stats.Aborted++
	}
}

// end takes a sequence out of the machine. Holds mu.
func (m *machine) end(s *sequence, reason string) {
	m.running = slices.DeleteFunc(m.running, func(x *sequence) bool { return x == s })
	m.kv.release(s.blocks, s.private)
	s.blocks, s.private = nil, 0
	s.over.Store(true)
	m.metrics.ended(reason, time.Since(s.arrived))
	s.signal()
}

func (m *machine) close() {
	m.mu.Lock()
	first := !m.closed
	m.closed = true
	m.mu.Unlock()
	if first {
		close(m.stop)
	}
	<-m.done
}

func (m *machine) run() {
	defer close(m.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		m.mu.Lock()
		m.admit()
		step, work := m.schedule(time.Now())
		m.mu.Unlock()

		var due <-chan time.Time
		if step > 0 {
			timer.Reset(step)
			due = timer.C
		}
		switch {
		case work && step == 0: // zero latency: no waiting
		case work: // a step, once begun, runs to its end
			select {
			case <-due:
			case <-m.stop:
			}
		default:
			select {
			case <-due:
			case <-m.poke:
			case <-m.stop:
			}
		}
		select {
		case <-m.stop:
			m.drop()
			return
		default:
		}
		if work {
			m.mu.Lock()
			m.commit(time.Now())
			m.mu.Unlock()
		}
	}
}

// drop ends whatever is left when the machine stops.
func (m *machine) drop() {
	m.mu.Lock()
	left := slices.Concat(m.running, m.waiting)
	m.mu.Unlock()
	m.abort(left...)
}

// admit moves waiting sequences to running ones, first come first served, as
// far as slots and KV memory reach. Holds mu.
func (m *machine) admit() {
	for len(m.waiting) > 0 && len(m.running) < m.cfg.MaxNumSeqs {
		s := m.waiting[0]
		known := s.prompt + int(s.made.Load())
		// The last token is always computed: its output is the next token.
		limit := min(len(s.hashes), (known-1)/blockSize)
		got := m.kv.acquire(s.hashes[:limit])
		need := blocksFor(known) - len(got)
		if !m.kv.grow(need) {
			m.kv.release(got, 0)
			return
		}
		s.blocks, s.private = got, need
		s.computed = len(got) * blockSize
		if !s.admitted {
			s.admitted = true
			s.first = s.computed
			if s.hashes != nil {
				m.stats.PrefixQueries += s.prompt
				m.stats.PrefixHits += s.computed
				m.metrics.prefix(s.prompt, s.computed)
			}
		}
		m.waiting = m.waiting[1:]
		m.running = append(m.running, s)
	}
}

func blocksFor(tokens int) int { return (tokens + blockSize - 1) / blockSize }

// schedule shares out one step. It returns how long the step takes; without
// work, how long until there may be some (0: until something is submitted).
// Holds mu.
func (m *machine) schedule(now time.Time) (step time.Duration, work bool) {
	budget := m.cfg.MaxBatchedTokens
	var next time.Time
	batch, prefill := 0, 0
	for i := 0; i < len(m.running); i++ {
		s := m.running[i]
		s.chunk = 0
		if now.Before(s.ready) {
			if next.IsZero() || s.ready.Before(next) {
				next = s.ready
			}
			continue
		}
		chunk := s.want(m.cfg.ZeroLatency)
		if !m.cfg.ZeroLatency {
			chunk = min(chunk, budget)
		}
		if !m.room(s, s.computed+chunk) {
			break // s itself was the last and had to go back
		}
		s.chunk = chunk
		if chunk > 0 {
			batch++
			budget -= chunk
			prefill += chunk - 1
		}
	}
	switch {
	case batch > 0 && m.cfg.ZeroLatency:
		return 0, true
	case batch > 0:
		step = m.cfg.ITL + time.Duration(batch-1)*m.cfg.ITLPerSeq
		return step + time.Duration(prefill)*time.Second/time.Duration(m.cfg.PrefillRate), true
	case !next.IsZero():
		return next.Sub(now), false
	default:
		return 0, false
	}
}

// room makes sure that s has blocks for so many tokens. When memory is full the
// youngest running sequences go back to the queue and are computed again later.
// It reports whether s still runs. Holds mu.
func (m *machine) room(s *sequence, tokens int) bool {
	need := blocksFor(tokens) - len(s.blocks) - s.private
	if need <= 0 {
		return true
	}
	for !m.kv.grow(need) {
		victim := m.running[len(m.running)-1]
		m.running = m.running[:len(m.running)-1]
		m.kv.release(victim.blocks, victim.private)
		victim.blocks, victim.private, victim.computed, victim.chunk = nil, 0, 0, 0
		m.waiting = slices.Insert(m.waiting, 0, victim)
		m.metrics.preempted.Inc()
		if victim == s {
			return false
		}
	}
	s.private += need
	return true
}

// commit books the step that has passed. Holds mu.
func (m *machine) commit(now time.Time) {
	for _, s := range slices.Clone(m.running) {
		if s.chunk == 0 {
			continue
		}
		s.computed += s.chunk
		s.chunk = 0
		for len(s.blocks) < min(s.computed/blockSize, len(s.hashes)) {
			s.blocks = append(s.blocks, m.kv.publish(s.hashes[len(s.blocks)]))
			s.private--
		}
		before := int(s.made.Load())
		if s.computed < s.prompt+before {
			continue
		}
		made := min(s.computed-s.prompt+1, s.total)
		m.book(s, before, made, now)
		if made == s.total {
			m.end(s, s.finish)
			m.stats.Finished++
			continue
		}
		s.signal()
	}
}

// book counts the tokens that a step gave to s. Holds mu.
func (m *machine) book(s *sequence, before, made int, now time.Time) {
	if before == 0 {
		m.stats.PromptTokens += s.prompt
		m.metrics.firstToken(s.prompt, now.Sub(s.arrived))
	} else {
		m.metrics.gap.Observe(now.Sub(s.last).Seconds())
	}
	s.last = now
	m.stats.GeneratedTokens += made - before
	m.metrics.generated.Add(float64(made - before))
	s.made.Store(int64(made))
}

// load counts running and waiting sequences, and the part of the KV memory that is used.
func (m *machine) load() (running, waiting int, used float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.running), len(m.waiting), float64(m.kv.inUse()) / float64(m.kv.capacity)
}

// counts returns what was counted so far.
func (m *machine) counts() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}
