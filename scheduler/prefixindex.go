package scheduler

import "sort"

// prefixIndex remembers which endpoint has which blocks of prompts in its
// prefix cache: those that it was sent, up to the size of its cache, the least
// recently used forgotten first.
//
// It does as engines do: a prompt's blocks are used from the last to the first,
// so that the end of a prefix is evicted before its beginning. Hence what an
// endpoint has of a chain is always a beginning of it, and along a chain the
// number of holders only falls. Matching looks for the few places where it
// falls, by halving, and not at each block.
//
// It takes 40 bytes for each block of an endpoint and 13 to 26 for each
// different one, and is bounded by maxEntries. Endpoints beyond maxShelves have
// no part in it.
type prefixIndex struct {
	slabs   [][]entry // of slabSize each; entry 0 is none
	unused  uint32    // list of entries, by older
	made    uint32    // how many entries there ever were
	blocks  [1 << shardBits]blockTable
	shelves []*shelf // by number; nil where there is none; number 0 is none
	clock   uint32   // counts the prompts: the stamp of the latest
	asked   uint32   // counts the searches
	reuse   reuse
	gap     uint32 // of the last search: the least of the end of the longest match; 0: used once
}

// before reports whether a stamp is older than another; the clock may wrap.
func before(a, b uint32) bool { return int32(a-b) < 0 } //nolint:gosec // on purpose

const (
	slabSize  = 1 << 12
	shardBits = 7 // tables grow one by one, so that no decision waits for all
	// maxEntries bounds the blocks that are remembered of all endpoints of a
	// pool together: about 250 MB.
	maxEntries = 1 << 22
	maxShelves = 1<<16 - 2
	// maxFalls is at how many places of a chain holders are looked up, from
	// its end. Who holds still less of it counts as having nothing.
	maxFalls = 64
)

// entry is one block that one endpoint has. Others are named by their place.
type entry struct {
	hash         uint64
	before       uint32 // the block before it, of the same endpoint
	newer, older uint32 // of the same endpoint, in order of use
	prev, next   uint32 // of the same block, of other endpoints
	shelf        uint32
	stamp        uint32 // the clock at its last use
	gap          uint32 // prompts from one use to the next, in the mean; 0: used once
}

// used notes a use and how long the last one is ago.
func (e *entry) used(clock uint32) {
	gap := clock - e.stamp
	if e.gap > 0 {
		gap = (3*e.gap + gap) / 4
	}
	e.stamp, e.gap = clock, max(gap, 1)
}

// shelf is an endpoint's part of the index.
type shelf struct {
	asked          uint32 // the search that match and last are of
	match          int    // how many blocks of the chain it has
	last           uint32 // entry of the last of them
	tail           uint32 // stamp of the oldest
	capacity, size int    // blocks
	number         uint32
	newest, oldest uint32
}

func (x *prefixIndex) at(i uint32) *entry { return &x.slabs[i/slabSize][i%slabSize] }

func (x *prefixIndex) table(hash uint64) *blockTable { return &x.blocks[hash>>(64-shardBits)] }

// join gives an endpoint its part.
func (x *prefixIndex) join(s *shelf) {
	if len(x.shelves) == 0 {
		x.shelves = append(x.shelves, nil)
	}
	for i := 1; i < len(x.shelves); i++ {
		if x.shelves[i] == nil {
			s.number, x.shelves[i] = uint32(i), s
			return
		}
	}
	if len(x.shelves) > maxShelves {
		return
	}
	s.number = uint32(len(x.shelves)) //nolint:gosec // bounded
	x.shelves = append(x.shelves, s)
}

// leave forgets an endpoint.
func (x *prefixIndex) leave(s *shelf) {
	x.clear(s)
	if s.number != 0 {
		x.shelves[s.number] = nil
	}
	s.number, s.asked = 0, 0
}

// clear forgets what an endpoint has.
func (x *prefixIndex) clear(s *shelf) {
	for s.oldest != 0 {
		x.drop(s, s.oldest)
	}
}

// resize sets how many blocks an endpoint's cache has.
func (x *prefixIndex) resize(s *shelf, capacity int) {
	for s.capacity = capacity; s.size > capacity; {
		x.drop(s, s.oldest)
	}
}

// search finds how many blocks of a chain each endpoint has, for have to tell,
// and returns the most.
func (x *prefixIndex) search(hashes []uint64) int {
	x.asked++
	x.gap = 0
	count := func(i int) uint16 { return x.table(hashes[i]).find(x, hashes[i]).count }
	most := sort.Search(len(hashes), func(i int) bool { return count(i) == 0 })
	for end, falls := most, 0; end > 0 && falls < maxFalls; falls++ {
		h := x.table(hashes[end-1]).find(x, hashes[end-1])
		for i := h.first; i != 0; {
			e := x.at(i)
			if s := x.shelves[e.shelf]; s.asked != x.asked {
				s.asked, s.match, s.last = x.asked, end, i
			}
			if falls == 0 && e.gap > 0 && (x.gap == 0 || e.gap < x.gap) {
				x.gap = e.gap
			}
			i = e.next
		}
		end = sort.Search(end-1, func(i int) bool { return count(i) <= h.count })
	}
	return most
}

// have is how many blocks the endpoint has of the chain searched for last.
func (x *prefixIndex) have(s *shelf) int {
	if s.asked != x.asked {
		return 0
	}
	return s.match
}

// use notes that the endpoint is sent the chain that was searched for last.
func (x *prefixIndex) use(s *shelf, hashes []uint64) {
	hashes = hashes[:min(len(hashes), s.capacity)]
	x.clock++
	have, last := x.have(s), uint32(0)
	if have > 0 {
		last = s.last
	}
	for i := last; i != 0; {
		e := x.at(i)
		x.reuse.use(x.clock - e.stamp)
		e.used(x.clock)
		if s.newest != i {
			x.unlink(s, e)
			x.link(s, i, e, 0)
		}
		i = e.before
	}
	// What was used just now is the newest and fits, so that it stays.
	for s.size+len(hashes)-have > s.capacity && s.oldest != 0 {
		x.reuse.evict(x.clock - s.tail)
		x.drop(s, s.oldest)
	}
	for ; have < len(hashes); have++ {
		last = x.add(s, hashes[have], last)
	}
	s.asked = 0 // it has more now
	x.age(s)
}

// add remembers a block and puts it behind the one before it in order of use.
func (x *prefixIndex) add(s *shelf, hash uint64, before uint32) uint32 {
	i := x.unused
	if i != 0 {
		x.unused = x.at(i).older
	} else {
		x.made++
		if i = x.made; int(i/slabSize) >= len(x.slabs) {
			x.slabs = append(x.slabs, make([]entry, slabSize))
		}
	}
	h := x.table(hash).insert(x, hash)
	e := x.at(i)
	*e = entry{hash: hash, before: before, next: h.first, shelf: s.number, stamp: x.clock}
	if h.first != 0 {
		x.at(h.first).prev = i
	}
	h.first = i
	h.count++
	x.link(s, i, e, before)
	s.size++
	return i
}

// drop forgets a block of an endpoint after which it has none.
func (x *prefixIndex) drop(s *shelf, i uint32) {
	e := x.at(i)
	x.unlink(s, e)
	table := x.table(e.hash)
	if h := &table.slots[table.place(x, e.hash)]; h.count == 1 {
		table.remove(x, e.hash)
	} else if h.count--; h.first == i {
		h.first = e.next
	}
	if e.prev != 0 {
		x.at(e.prev).next = e.next
	}
	if e.next != 0 {
		x.at(e.next).prev = e.prev
	}
	*e = entry{older: x.unused}
	x.unused = i
	s.size--
	if s.last == i {
		s.asked = 0
	}
	x.age(s)
}

// age keeps the stamp of the oldest at hand.
func (x *prefixIndex) age(s *shelf) {
	if s.oldest != 0 {
		s.tail = x.at(s.oldest).stamp
	}
}

// link puts an entry right behind another in order of use; 0: before all.
func (x *prefixIndex) link(s *shelf, i uint32, e *entry, newer uint32) {
	e.newer = newer
	if newer == 0 {
		e.older, s.newest = s.newest, i
	} else {
		n := x.at(newer)
		e.older, n.older = n.older, i
	}
	if e.older == 0 {
		s.oldest = i
	} else {
		x.at(e.older).newer = i
	}
}

func (x *prefixIndex) unlink(s *shelf, e *entry) {
	if e.newer == 0 {
		s.newest = e.older
	} else {
		x.at(e.newer).older = e.older
	}
	if e.older == 0 {
		s.oldest = e.newer
	} else {
		x.at(e.older).newer = e.newer
	}
}

// undo forgets what a use with this stamp added, from the end of the chain to
// its block from, as far as nothing else has used it since.
func (x *prefixIndex) undo(s *shelf, hashes []uint64, from int, stamp uint32) {
	hashes = hashes[:min(len(hashes), s.capacity)]
	if s.number == 0 || from >= len(hashes) {
		return
	}
	i := x.entryOf(s, hashes[len(hashes)-1])
	for n := len(hashes); n > from && i != 0; n-- {
		e := x.at(i)
		if e.stamp != stamp {
			return
		}
		before := e.before
		x.drop(s, i)
		i = before
	}
}

func (x *prefixIndex) entryOf(s *shelf, hash uint64) uint32 {
	i := x.table(hash).find(x, hash).first
	for i != 0 && x.at(i).shelf != s.number {
		i = x.at(i).next
	}
	return i
}

// lost forgets what the endpoint last used at the stamp or before it: it turned
// out not to have a block of that time any more.
func (x *prefixIndex) lost(s *shelf, stamp uint32) {
	for s.oldest != 0 && !before(stamp, s.tail) {
		x.drop(s, s.oldest)
	}
}
