package enginesim

import (
	"slices"
	"time"
)

func (m *machine) run() {
	defer close(m.done)
	defer m.drop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var made []*sequence // have a token of the last step
	for {
		m.mu.Lock()
		m.admit()
		step, work := m.schedule(time.Now())
		m.kv.log.flush(time.Now())
		m.mu.Unlock()

		step = m.deliver(timer, made, step)
		if !m.wait(timer, step, work) {
			return
		}
		made = nil
		if work {
			m.mu.Lock()
			made = m.commit(time.Now())
			m.kv.log.flush(time.Now())
			m.mu.Unlock()
		}
	}
}

// deliver tells sequences of their tokens while the next step runs, eight each
// millisecond: a real server's front end sends the chunks of a step one after
// another too, it doesn't burst. It returns what is left of the step.
func (m *machine) deliver(timer *time.Timer, made []*sequence, step time.Duration) time.Duration {
	const (
		each = 8
		tick = time.Millisecond
	)
	end := time.Now().Add(step)
	for len(made) > each && time.Until(end) > tick {
		for _, s := range made[:each] {
			s.signal()
		}
		made = made[each:]
		if !m.wait(timer, tick, true) {
			return 0
		}
	}
	for _, s := range made {
		s.signal()
	}
	if step <= 0 {
		return step
	}
	return max(time.Until(end), 1) // 0 would be no end
}

// wait lets d pass; without work it ends early when something is submitted,
// and without d as well it waits for that. It reports false when the machine
// shall stop.
func (m *machine) wait(timer *time.Timer, d time.Duration, work bool) bool {
	var due <-chan time.Time
	if d > 0 {
		timer.Reset(d)
		due = timer.C
	}
	poke := m.poke
	if work {
		poke = nil // a step, once begun, runs to its end
	}
	if work && d <= 0 {
		select {
		case <-m.stop:
			return false
		default:
			return true
		}
	}
	select {
	case <-due:
	case <-poke:
	case <-m.stop:
		return false
	}
	return true
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
		loaded, takes := m.kv.below(s.hashes[len(got):limit])
		need := blocksFor(known) - len(got)
		if !m.kv.grow(need) {
			m.kv.release(got, 0)
			return
		}
		s.blocks, s.private = got, need
		for range loaded.blocks() {
			m.publish(s)
		}
		if takes > 0 && !m.cfg.ZeroLatency {
			s.ready = time.Now().Add(max(time.Until(s.ready), 0) + takes)
		}
		s.computed = len(s.blocks) * blockSize
		if !s.admitted {
			s.admitted = true
			s.first, s.lower = s.computed, loaded
			if s.fetched != nil { // all but the last token, as for a prompt that is known
				s.computed, s.first = max(s.computed, known-1), s.fetched.cached
			}
			if s.hashes != nil && s.fetched == nil {
				m.stats.PrefixQueries += s.prompt
				m.stats.PrefixHits += s.computed
				m.metrics.prefix(s.prompt, s.computed)
			}
		}
		m.waiting = m.waiting[1:]
		m.running = append(m.running, s)
	}
}

// publish makes the sequence's next block, now full, known. Holds mu.
func (m *machine) publish(s *sequence) {
	i := len(s.blocks)
	b, fresh := m.kv.publish(s.hashes[i])
	if s.blocks = append(s.blocks, b); fresh {
		m.kv.log.stored(s, i)
	}
	s.private--
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

// commit books the step that has passed. It returns the sequences that go on
// and have to be told of a token; the others know. Holds mu.
func (m *machine) commit(now time.Time) (made []*sequence) {
	for _, s := range slices.Clone(m.running) {
		if s.chunk == 0 {
			continue
		}
		s.computed += s.chunk
		s.chunk = 0
		for len(s.blocks) < min(s.computed/blockSize, len(s.hashes)) {
			m.publish(s)
		}
		before := int(s.made.Load())
		if s.computed < s.prompt+before {
			continue
		}
		after := min(s.computed-s.prompt+1, s.total)
		m.book(s, before, after, now)
		if after == s.total {
			m.stats.Finished++
			m.end(s, s.finish)
			continue
		}
		made = append(made, s)
	}
	return made
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
