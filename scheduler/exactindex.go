package scheduler

import "sort"

// exactIndex is which endpoint has which blocks in its prefix cache, as the
// engines themselves say.
//
// A block without the one before it is no use to a prompt. So where a block
// goes, those go that follow it, and what an endpoint has of a chain is always
// a beginning of it: along a chain the number of holders only falls, and a
// search looks for the places where it does by halving. Engines evict the ends
// of prompts first; so hardly ever anything goes that is still there.
//
// It takes 40 bytes for each block of an endpoint and some 20 for each different
// one.
type exactIndex struct {
	slabs   [][]exactEntry // of slabSize each; entry 0 is none
	unused  uint32         // list of entries, by right
	made    uint32         // how many there ever were
	size    int            // entries in use
	heads   map[uint64]exactHead
	shelves []*exactShelf // by number; number 0 is none
	asked   uint32        // counts the searches

	dying  []*exactShelf // that are in use no more, and yet to be swept
	cursor uint32        // where the sweep of the last of them stands; 0: it begins
}

// exactHead is the entries of one block.
type exactHead struct {
	first uint32
	count uint32
}

// exactEntry is one block that one endpoint has. Others are named by their
// place.
type exactEntry struct {
	hash        uint64
	next, prev  uint32 // of the same block, of other endpoints
	before      uint32 // the block before it, of the same endpoint; 0: it is a first one
	child       uint32 // a block that follows it
	left, right uint32 // that follow the same block
	shelf       uint32
	held        [tiers]uint8 // how often the engine has it, up to 255
}

// exactShelf is what one endpoint has.
type exactShelf struct {
	number uint32
	roots  uint32 // a first block; the others by left and right
	size   int
	blocks [tiers]int

	asked uint32 // the search that match and last are of
	match int    // how many blocks of the chain it has
	last  uint32 // entry of the last of them
}

func (x *exactIndex) at(i uint32) *exactEntry { return &x.slabs[i/slabSize][i%slabSize] }

// join gives an endpoint a shelf.
func (x *exactIndex) join() *exactShelf {
	s := &exactShelf{}
	if x.heads == nil {
		x.heads, x.shelves = map[uint64]exactHead{}, []*exactShelf{nil}
	}
	for i := 1; i < len(x.shelves); i++ {
		if x.shelves[i] == nil {
			s.number, x.shelves[i] = uint32(i), s
			return s
		}
	}
	s.number = uint32(len(x.shelves)) //nolint:gosec // a pool's endpoints
	x.shelves = append(x.shelves, s)
	return s
}

// leave takes a shelf out of use. What is on it is forgotten by sweep.
func (x *exactIndex) leave(s *exactShelf) { x.dying, x.cursor = append(x.dying, s), 0 }

// clear returns an empty shelf in place of one that is used no more.
func (x *exactIndex) clear(s *exactShelf) *exactShelf {
	if s.size == 0 {
		return s
	}
	x.leave(s)
	return x.join()
}

// sweep does so many steps of forgetting what is on shelves that are out of use,
// and reports whether that is not all. A cache may have a million blocks, and
// decisions would wait for as long as it takes to forget them at once.
func (x *exactIndex) sweep(steps int) (more bool) {
	for ; len(x.dying) > 0 && steps > 0; steps-- {
		s := x.dying[len(x.dying)-1]
		i := x.cursor
		if i == 0 {
			i = s.roots
		}
		switch {
		case i == 0:
			x.shelves[s.number] = nil
			x.dying = x.dying[:len(x.dying)-1]
		case x.at(i).child != 0:
			x.cursor = x.at(i).child
		default:
			x.cursor = x.at(i).before
			x.forget(s, i)
		}
	}
	return len(x.dying) > 0
}

func (x *exactIndex) entryOf(s *exactShelf, hash uint64) uint32 {
	i := x.heads[hash].first
	for i != 0 && x.at(i).shelf != s.number {
		i = x.at(i).next
	}
	return i
}

// store notes that the endpoint has the block. It reports false where it lacks
// the block before: something was missed.
func (x *exactIndex) store(s *exactShelf, c CacheChange) bool {
	i := x.entryOf(s, c.Block)
	if i == 0 {
		before := uint32(0)
		if c.Parent != 0 {
			if before = x.entryOf(s, c.Parent); before == 0 {
				return false
			}
		}
		i = x.add(s, c.Block, before)
	}
	e := x.at(i)
	if e.held[c.Tier] == 0 {
		s.blocks[c.Tier]++
	}
	if e.held[c.Tier] < 255 {
		e.held[c.Tier]++
	}
	return true
}

func (x *exactIndex) add(s *exactShelf, hash uint64, before uint32) uint32 {
	i := x.unused
	if i != 0 {
		x.unused = x.at(i).right
	} else {
		x.made++
		if i = x.made; int(i/slabSize) >= len(x.slabs) {
			x.slabs = append(x.slabs, make([]exactEntry, slabSize))
		}
	}
	head := x.heads[hash]
	row := x.row(s, before)
	*x.at(i) = exactEntry{hash: hash, next: head.first, before: before, right: *row, shelf: s.number}
	if head.first != 0 {
		x.at(head.first).prev = i
	}
	if *row != 0 {
		x.at(*row).left = i
	}
	*row = i
	x.heads[hash] = exactHead{first: i, count: head.count + 1}
	x.size++
	s.size++
	return i
}

// row is the list of the blocks that follow one.
func (x *exactIndex) row(s *exactShelf, before uint32) *uint32 {
	if before == 0 {
		return &s.roots
	}
	return &x.at(before).child
}

// remove notes that the endpoint has the block no more in a tier, or once less.
func (x *exactIndex) remove(s *exactShelf, c CacheChange) {
	i := x.entryOf(s, c.Block)
	if i == 0 {
		return
	}
	e := x.at(i)
	if e.held[c.Tier] == 0 {
		return
	}
	if e.held[c.Tier]--; c.All {
		e.held[c.Tier] = 0
	}
	if e.held[c.Tier] == 0 {
		s.blocks[c.Tier]--
	}
	if e.held == [tiers]uint8{} {
		x.drop(s, i)
	}
}

// drop forgets a block and all that follow it.
func (x *exactIndex) drop(s *exactShelf, top uint32) {
	for i := top; ; {
		e := x.at(i)
		if e.child != 0 {
			i = e.child
			continue
		}
		before := e.before
		x.forget(s, i)
		if i == top {
			return
		}
		i = before
	}
}

// forget takes one block out that none follows.
func (x *exactIndex) forget(s *exactShelf, i uint32) {
	e := x.at(i)
	for t, n := range e.held {
		if n > 0 {
			s.blocks[t]--
		}
	}
	if e.left != 0 {
		x.at(e.left).right = e.right
	} else {
		*x.row(s, e.before) = e.right
	}
	if e.right != 0 {
		x.at(e.right).left = e.left
	}
	head := x.heads[e.hash]
	if e.prev != 0 {
		x.at(e.prev).next = e.next
	} else {
		head.first = e.next
	}
	if e.next != 0 {
		x.at(e.next).prev = e.prev
	}
	if head.count--; head.count == 0 {
		delete(x.heads, e.hash)
	} else {
		x.heads[e.hash] = head
	}
	*e = exactEntry{right: x.unused}
	x.unused = i
	x.size--
	s.size--
	if s.last == i {
		s.asked = 0
	}
}

// search finds how many blocks of a chain each endpoint has, for have to tell.
func (x *exactIndex) search(hashes []uint64) {
	x.asked++
	count := func(i int) uint32 { return x.heads[hashes[i]].count }
	end := sort.Search(len(hashes), func(i int) bool { return count(i) == 0 })
	for falls := 0; end > 0 && falls < maxFalls; falls++ {
		head := x.heads[hashes[end-1]]
		for i := head.first; i != 0; {
			e := x.at(i)
			if s := x.shelves[e.shelf]; s.asked != x.asked {
				s.asked, s.match, s.last = x.asked, end, i
			}
			i = e.next
		}
		end = sort.Search(end-1, func(i int) bool { return count(i) <= head.count })
	}
}

// have is how many blocks the endpoint has of the chain searched for last.
func (x *exactIndex) have(s *exactShelf) int {
	if s.asked != x.asked {
		return 0
	}
	return s.match
}

// worth is what these blocks save, a computed one being 1, and how many of them
// are not in the quickest tier. Engines fill that one from the beginnings of
// prompts, so what isn't there comes last.
func (x *exactIndex) worth(s *exactShelf, each [tiers]float64) (saved float64, slow int) {
	n := x.have(s)
	if n == 0 || s.blocks[TierHBM] == s.size {
		return float64(n), 0
	}
	lost := 0.0
	for i := s.last; i != 0; i = x.at(i).before {
		held := &x.at(i).held
		if held[TierHBM] > 0 {
			break
		}
		slow++
		if held[TierHost] > 0 {
			lost += 1 - each[TierHost]
		} else {
			lost += 1 - each[TierStorage]
		}
	}
	return float64(n) - lost, slow
}
