package admission

import (
	"context"
	_ "embed"
	"maps"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

//go:embed carry.lua
var carryScript string

//go:embed life.lua
var lifeScript string

const (
	lifeKey = "weir:life"
	// maxCarried bounds the nodes whose rates are carried into Redis. Those above
	// it start anew there.
	maxCarried = 1 << 16
	// carryChunk is how many nodes one script call carries.
	carryChunk = 100
)

// arrears are what this replica admitted by itself, of which Redis knows nothing:
// by node, how far each meter is ahead at the node's whole limits. What a replica
// may admit is a share of them, and so is what flows off meanwhile; and nothing
// flows off before what Redis was told has.
type arrears map[string]*arrear

type arrear struct {
	tenant string
	ahead  [meters]int64 // us, at the time of at
	at     int64
	after  [meters]int64 // when it begins to flow off
}

// drain brings what is ahead down to now, where so many replicas share a limit.
func (a *arrear) drain(now int64, replicas int) {
	for m := range a.ahead {
		off := max(0, now-max(a.at, a.after[m])) / int64(replicas)
		a.ahead[m] = max(0, a.ahead[m]-off)
	}
	a.at = max(a.at, now)
}

// change changes what the nodes of a request are ahead. It holds mu.
func (r *Redis) change(g *group, by [][meters]int64) {
	now := r.local.now().UnixMicro()
	for i := range g.nodes {
		id := g.nodes[i].ID
		a := r.arrears[id]
		if a == nil {
			if by[i] == ([meters]int64{}) || len(r.arrears) >= maxCarried {
				continue
			}
			a = &arrear{tenant: g.tenant, at: now, after: r.local.told(id)}
			r.arrears[id] = a
		}
		a.drain(now, max(1, r.cfg.Replicas()))
		for m := range a.ahead {
			a.ahead[m] = max(0, a.ahead[m]+by[i][m])
		}
	}
}

// charges are what the estimate costs at each node.
func (g *group) charges(estimate Counts) [][meters]int64 {
	by := make([][meters]int64, len(g.nodes))
	costs := estimate.all()
	for i := range g.nodes {
		for m, limit := range g.nodes[i].rates() {
			if limit > 0 && costs[m] > 0 {
				r := rateOf(Meter(m), limit)
				by[i][m] = r.cost(costs[m])
			}
		}
	}
	return by
}

// carried is what one renewal carries into Redis. It is kept until Redis has said
// that it took it, and carried under the same number again until then.
type carried struct {
	series string // of numbers
	number int
	more   arrears // is added
	least  arrears // is there at least
}

// lend notes that this replica charged a request by itself.
func (r *Redis) lend(g *group, estimate Counts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g.lent = r.number
	r.change(g, g.charges(estimate))
}

// correctLent replaces the estimate of a request by what it used, where Redis
// has not been told of it. False: it has, or may have.
func (r *Redis) correctLent(g *group) bool {
	if g.local == nil {
		r.local.retell(g)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.lent != r.number {
		return false
	}
	r.change(g, g.by)
	return true
}

// told is how far a node's meters are at Redis, as this replica knows: arrival
// times.
func (m *Memory) told(id string) (arrival [meters]int64) {
	s := m.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.nodes[id]; st != nil {
		arrival = st.told
	}
	return arrival
}

// retell notes what Redis is told of a request that has ended.
func (m *Memory) retell(g *group) {
	now := m.now().UnixMicro()
	for i := range g.nodes {
		if g.by[i] == ([meters]int64{}) {
			continue
		}
		s := m.shard(g.nodes[i].ID)
		s.mu.Lock()
		if st := s.nodes[g.nodes[i].ID]; st != nil {
			for m, by := range g.by[i] {
				if st.told[m] > now {
					st.told[m] = correct(st.told[m], now, by)
				}
			}
		}
		s.mu.Unlock()
	}
}

// allTold is told of all nodes that are ahead of now.
func (m *Memory) allTold() arrears {
	now := m.now().UnixMicro()
	out := arrears{}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for id, st := range s.nodes {
			if slices.Max(st.told[:]) > now && len(out) < maxCarried {
				a := &arrear{tenant: st.tenant, at: now}
				for m, at := range st.told {
					a.ahead[m] = max(0, at-now)
				}
				out[id] = a
			}
		}
		s.mu.Unlock()
	}
	return out
}

// ahead reports whether there is something to carry.
func (r *Redis) ahead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.arrears) > 0 || r.carrying != nil
}

// carry makes up what the next renewal carries. Once it has, only Redis can
// correct the estimates in it.
func (r *Redis) carry() *carried {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.carrying == nil {
		r.carrying = &carried{series: "carried:", number: r.number, more: r.arrears}
		r.arrears = arrears{}
		r.number++
	}
	return r.carrying
}

// recall tells a Redis that has lost its data what it had told this replica. The
// answer names the data that it has now. Only the renewal calls it.
func (r *Redis) recall(ctx context.Context, answer *redis.Cmd) error {
	life, err := answer.Text()
	if err != nil {
		return err
	}
	r.mu.Lock()
	lost := r.life != "" && r.life != life
	r.mu.Unlock()
	if lost {
		r.recalls++
		c := &carried{series: "recalled:", number: r.recalls, least: r.local.allTold()}
		_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			r.queueCarried(ctx, p, c)
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.life = life
	return nil
}

// queueCarried adds what is carried to a pipeline, tenant by tenant.
func (r *Redis) queueCarried(ctx context.Context, p redis.Pipeliner, c *carried) {
	now, replicas := r.local.now().UnixMicro(), max(1, r.cfg.Replicas())
	byTenant := map[string]map[string][2 * meters]int64{}
	note := func(s arrears, replicas, from int) {
		for id, a := range s {
			a.drain(now, replicas)
			nodes := byTenant[a.tenant]
			if nodes == nil {
				nodes = map[string][2 * meters]int64{}
				byTenant[a.tenant] = nodes
			}
			sum := nodes[id]
			for m, ahead := range a.ahead {
				sum[from+m] += ahead
			}
			nodes[id] = sum
		}
	}
	note(c.more, replicas, 0)
	note(c.least, 1, meters)
	for tenant, nodes := range byTenant {
		// In one order, so that the same number stands for the same nodes again.
		part := 0
		for chunk := range slices.Chunk(slices.Sorted(maps.Keys(nodes)), carryChunk) {
			keys, args := []string{"weir:{" + tenant + "}:" + c.series + strconv.Itoa(part) + ":" + r.name}, []any{c.number}
			for _, id := range chunk {
				keys = append(keys, ratesKey(tenant, id))
				for _, us := range nodes[id] {
					args = append(args, us)
				}
			}
			p.Eval(ctx, carryScript, keys, args...)
			part++
		}
	}
}
