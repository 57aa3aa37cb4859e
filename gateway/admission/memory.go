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
	now    func() time.Time
	hold   time.Duration
	seed   maphash.Seed
	shards [shardCount]shard
}

// MemoryConfig sets a Memory up. The zero value is the default.
type MemoryConfig struct {
	Now      func() time.Time // time.Now
	Hold     time.Duration    // MaxHold
	MaxNodes int              // DefaultMaxNodes; idle nodes are forgotten first
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
	m := &Memory{now: cfg.Now, hold: cfg.Hold, seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].nodes = map[string]*state{}
		m.shards[i].most = max(1, cfg.MaxNodes/shardCount)
	}
	return m
}

// Admit implements Store. Its errors are ErrFull and ErrNodes.
func (m *Memory) Admit(_ context.Context, requestID string, nodes []Node, estimate Counts) (Verdict, error) {
	nodes, err := limited(nodes)
	if err != nil || len(nodes) == 0 {
		return Verdict{Admitted: err == nil}, err
	}
	now := m.now().UnixMicro()
	locked := m.lock(nodes)
	defer m.unlock(locked)

	var states [MaxNodes]*state
	for i := range nodes {
		if states[i], err = m.shard(nodes[i].ID).state(nodes[i].ID, now); err != nil {
			return Verdict{}, err
		}
	}
	v := Verdict{Admitted: true}
	for i := range nodes {
		v.refuse(&nodes[i], states[i], requestID, estimate, now)
	}
	for i := range nodes {
		if v.Admitted {
			states[i].charge(&nodes[i], requestID, estimate, now, now+m.hold.Microseconds())
		}
		v.describe(&nodes[i], states[i].ahead(now))
	}
	return v, nil
}

// Release implements Store. It returns no error.
func (m *Memory) Release(_ context.Context, requestID string, nodes []Node, estimate, used Counts) error {
	now := m.now().UnixMicro()
	locked := m.lock(nodes)
	defer m.unlock(locked)
	for i := range nodes {
		if s := m.shard(nodes[i].ID).nodes[nodes[i].ID]; s != nil {
			s.settle(&nodes[i], requestID, estimate, used, now)
		}
	}
	return nil
}

// adopt puts a request that was admitted elsewhere into the live sets, without
// asking the limits or charging it. A node that no longer fits is left out.
func (m *Memory) adopt(requestID string, nodes []Node) {
	now := m.now().UnixMicro()
	locked := m.lock(nodes)
	defer m.unlock(locked)
	for i := range nodes {
		if s, err := m.shard(nodes[i].ID).state(nodes[i].ID, now); err == nil {
			s.enter(requestID, hold{expiry: now + m.hold.Microseconds()})
		}
	}
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
