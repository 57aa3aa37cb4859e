package main

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// agents is a closed loop of coding agents: each runs one session after the
// other, and in a session one turn after the other, with a tool's run between.
// Each turn's prompt is the last one's, its answer and the tool's output.
//
// The defaults are pinned to a published run of agentic coding: prompts of
// 142,000 tokens in the mean, 64 agents at once in a pool, and 93.9 % of all
// prompt tokens reusable by a cache that forgets nothing.
type agents struct {
	n      int           // at once
	begin  time.Duration // the agents start within it, evenly
	cease  time.Duration // no turn starts after it
	turns  int           // of a session
	common int           // tokens with which every session begins: instructions and tools
	opened int           // tokens of a session's first prompt
	grows  int           // tokens that a turn adds, its answer included
	answer int           // tokens of an answer
	tool   time.Duration // mean run of a tool
	class  string
	band   int
	seed   uint64

	rand     *rand.Rand
	sessions int
	running  map[*request]*session // by the request under way
}

// codingAgents is n agents of the published run.
func codingAgents(n int, seed uint64) *agents {
	return &agents{
		n: n, begin: 2 * time.Minute, cease: 17 * time.Minute,
		turns: 20, common: 8192, opened: 103_000, grows: 4100, answer: 350, tool: 5 * time.Second,
		class: "agent", seed: seed,
	}
}

// session is one agent's present session.
type session struct {
	agent, number int
	turn          int
	turns         int
	input         int // of the turn under way
}

func (a *agents) first() []*request {
	a.rand = rand.New(rand.NewPCG(a.seed, 1))
	a.running = map[*request]*session{}
	a.sessions = 0
	out := make([]*request, 0, a.n)
	for i := range a.n {
		at := a.begin * time.Duration(i) / time.Duration(a.n)
		// The first sessions are found at all stages, as later ones will be.
		s := a.open(i)
		s.turns -= a.rand.IntN(a.turns)
		out = append(out, a.next(s, at))
	}
	return numbered(out)
}

func (a *agents) open(agent int) *session {
	a.sessions++
	return &session{agent: agent, number: a.sessions, turns: a.turns}
}

// about varies a size by up to half of it.
func (a *agents) about(mean int) int { return mean/2 + a.rand.IntN(mean+1) }

// next is the session's next turn.
func (a *agents) next(s *session, at time.Duration) *request {
	s.turn++
	if s.turn == 1 {
		s.input = a.common + a.about(a.opened-a.common)
	} else {
		s.input += a.about(a.grows)
	}
	r := &request{
		at: at, input: s.input, output: max(a.about(a.answer), 1), blocks: a.blocks(s),
		class: a.class, tenant: "agents-" + strconv.Itoa(s.agent%8), band: a.band,
		session: "session-" + strconv.Itoa(s.number), turn: s.turn,
	}
	a.running[r] = s
	return r
}

// blocks names the blocks of a session's prompt: those that all sessions share,
// whole ones of its own, and a last one that is only a part: the next turn
// fills it up, and so has another in its place.
func (a *agents) blocks(s *session) []uint64 {
	whole := s.input / blockTokens
	out := make([]uint64, 0, whole+1)
	for i := range whole {
		owner := uint64(s.number)
		if i < a.common/blockTokens {
			owner = 0
		}
		out = append(out, owner<<32|uint64(i))
	}
	if s.input%blockTokens > 0 {
		out = append(out, 1<<63|uint64(s.number)<<32|uint64(s.turn))
	}
	return out
}

// ended starts the agent's next turn, or session, once the tool has run.
func (a *agents) ended(r *request, now time.Duration) *request {
	s := a.running[r]
	if s == nil {
		return nil // another workload's
	}
	delete(a.running, r)
	at := now + time.Duration(a.rand.ExpFloat64()*float64(a.tool))
	if at > a.cease {
		return nil
	}
	if s.turn >= s.turns {
		s = a.open(s.agent)
	}
	return a.next(s, at)
}
