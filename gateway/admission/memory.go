package admission

import (
	"context"
	"hash/maphash"
	"math/bits"
	"time"
)

const (
	shardCount = 64 // a bit each in the set of shards that a call locks
	// DefaultMaxNodes bounds the nodes that a Memory tracks.
	DefaultMaxNodes = 1 << 18
	// MaxHold is how long a Memory keeps the slot of a request that nobody
	// releases: longer than any exchange, a net under a lost Release.
	MaxHold = 24 * time.Hour
)

// Memory is the Store of one process: the default for a single replica, and
// what a replica falls back to while Redis is away.
type Memory struct {
	now     func() time.Time
	hold    time.Duration
	journal *Journal // of intents; nil: none are kept
	seed    maphash.Seed
	shards  [shardCount]shard
}

// MemoryConfig sets a Memory up. The zero value is the default.
type MemoryConfig struct {
	Now      func() time.Time // time.Now
	Hold     time.Duration    // MaxHold
	MaxNodes int              // DefaultMaxNodes; idle nodes are forgotten first
	Journal  *Journal         // where intents are kept; nil: they are not
}

// NewMemory returns an empty store.
func NewMemory(cfg MemoryConfig) *Memory {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Hold == 0 {
		cfg.Hold = MaxHold
	}
	if cfg.MaxNodes == 0 {
		cfg.MaxNodes = DefaultMaxNodes
	}
	m := &Memory{now: cfg.Now, hold: cfg.Hold, journal: cfg.Journal, seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].nodes = map[string]*state{}
		m.shards[i].most = max(1, cfg.MaxNodes/shardCount)
	}
	return m
}

// Admit implements Store. Its errors are ErrFull and ErrNodes, and those of a
// journal that can't be written.
func (m *Memory) Admit(_ context.Context, r *Request) (Verdict, error) {
	v, err := m.charge(r, r.Nodes)
	if err != nil || !v.Admitted || r.Intent == nil || m.journal == nil {
		return v, err
	}
	if err := m.journal.put(r.Intent); err != nil {
		m.settle(r.ID, r.Nodes, r.Estimate, Counts{})
		return Verdict{}, err
	}
	return v, nil
}

// charge asks all nodes, and charges all if none refuses.
func (m *Memory) charge(r *Request, nodes []Node) (Verdict, error) {
	nodes, err := limited(nodes)
	if err != nil || len(nodes) == 0 {
		return Verdict{Admitted: err == nil}, err
	}
	now := m.now().UnixMicro()
	locked := m.lock(nodes)
	defer m.unlock(locked)

	var states [MaxNodes]*state
	for i := range nodes {
		if states[i], err = m.shard(nodes[i].ID).state(nodes[i].ID, r.Tenant, now); err != nil {
			return Verdict{}, err
		}
	}
	v := Verdict{Admitted: true}
	for i := range nodes {
		v.refuse(&nodes[i], states[i], r.ID, r.Estimate, now)
	}
	for i := range nodes {
		if v.Admitted {
			states[i].charge(&nodes[i], r.ID, r.Estimate, now, now+m.hold.Microseconds())
		}
		v.describe(&nodes[i], states[i].ahead(now))
	}
	return v, nil
}

// Release implements Store. Its errors are those of the journal; the slots are
// free all the same.
func (m *Memory) Release(_ context.Context, r *Request, used Counts) error {
	m.settle(r.ID, r.Nodes, r.Estimate, used)
	if r.Intent == nil || m.journal == nil {
		return nil
	}
	return m.journal.drop(r.Intent.Request)
}

func (m *Memory) settle(id string, nodes []Node, estimate, used Counts) {
	now := m.now().UnixMicro()
	locked := m.lock(nodes)
	defer m.unlock(locked)
	for i := range nodes {
		if s := m.shard(nodes[i].ID).nodes[nodes[i].ID]; s != nil {
			s.settle(&nodes[i], id, estimate, used, now)
		}
	}
}

// Look implements Store. It returns no error.
func (m *Memory) Look(_ context.Context, _ string, nodes []Node) ([]Standing, error) {
	now := m.now().UnixMicro()
	out := make([]Standing, len(nodes))
	for i := range nodes {
		s := m.shard(nodes[i].ID)
		s.mu.Lock()
		var ahead [meters]int64
		live := 0
		if st := s.nodes[nodes[i].ID]; st != nil {
			st.expire(now)
			ahead, live = st.ahead(now), len(st.live)
		}
		s.mu.Unlock()
		out[i] = nodes[i].stand(ahead, live)
	}
	return out, nil
}

// adopt charges a request that was admitted elsewhere, without asking the limits:
// should this store have to judge, it knows what is spent. ahead is how far the
// meters are there now. A node that no longer fits is left out.
func (m *Memory) adopt(r *Request, nodes []Node, ahead []int64) {
	now := m.now().UnixMicro()
	locked := m.lock(nodes)
	defer m.unlock(locked)
	for i := range nodes {
		if s, err := m.shard(nodes[i].ID).state(nodes[i].ID, r.Tenant, now); err == nil {
			s.charge(&nodes[i], r.ID, r.Estimate, now, now+m.hold.Microseconds())
			for m := range s.told {
				s.told[m] = now + ahead[meters*i+m]
			}
		}
	}
}

// Checkpoint implements Intents.
func (m *Memory) Checkpoint(_ context.Context, p []Progress) error {
	if m.journal == nil {
		return nil
	}
	return m.journal.note(p)
}

// Orphans implements Intents: those of the processes before this one.
func (m *Memory) Orphans(_ context.Context, _ []string, most int) ([]Intent, error) {
	if m.journal == nil {
		return nil, nil
	}
	return m.journal.left(most), nil
}

// Forget implements Intents.
func (m *Memory) Forget(_ context.Context, settled []Intent) error {
	if m.journal == nil {
		return nil
	}
	return m.journal.forget(settled)
}

func (m *Memory) index(id string) uint64 { return maphash.String(m.seed, id) % shardCount }
func (m *Memory) shard(id string) *shard { return &m.shards[m.index(id)] }
func (m *Memory) each(set uint64, do func(*shard)) {
	for ; set != 0; set &= set - 1 {
		do(&m.shards[bits.TrailingZeros64(set)])
	}
}

// lock takes the shards of all nodes, in ascending order and so without
// deadlock, and returns the set of them.
func (m *Memory) lock(nodes []Node) (set uint64) {
	for _, n := range nodes {
		set |= 1 << m.index(n.ID)
	}
	m.each(set, func(s *shard) { s.mu.Lock() })
	return set
}

func (m *Memory) unlock(set uint64) { m.each(set, func(s *shard) { s.mu.Unlock() }) }
