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
	prompt int     // tokens
	total  int     // tokens to make; 0 computes the prompt only
	tokens []token // of prompt and answer, and the salt of their hashes, where that is published
	salt   string
	hashes []uint64 // of the full blocks of prompt and answer; none: not cached
	finish string   // the reason that its end is counted under
	wake   chan struct{}

	urgency int      // in the queue: the lower goes first
	fetched *fetched // its prompt's cache comes from another engine; nil: it is computed here

	made  atomic.Int64
	over  atomic.Bool
	first int   // cached tokens found when it was first admitted; fixed once a token was made
	lower lying // what of them was loaded from lower tiers

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

func newMachine(cfg Config, m *metrics, kv *kvCache) *machine {
	mc := &machine{
		cfg: cfg, metrics: m, kv: kv,
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
	if m.cfg.Priorities == NoPriorities {
		m.waiting = append(m.waiting, seqs...)
	} else {
		m.waiting = line(m.waiting, seqs)
	}
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

// drop ends whatever is left when the machine stops.
func (m *machine) drop() {
	m.mu.Lock()
	left := slices.Concat(m.running, m.waiting)
	m.mu.Unlock()
	m.abort(left...)
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
