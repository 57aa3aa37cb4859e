package scheduler

// blockTable finds the holders of a block by its hash. It probes linearly in
// one array without pointers: a map of the language takes several times as long
// for keys that are hashes already, and is what the garbage collector looks
// through.
type blockTable struct {
	slots []holders
	used  int
}

// holders is the list of the entries of one block. A slot without any is free.
type holders struct {
	first uint32
	count uint16
	tag   uint16 // part of the hash: most other blocks are told by it alone
}

func tagOf(hash uint64) uint16 { return uint16(hash >> 32) } //nolint:gosec // a part of it

func (t *blockTable) home(hash uint64) int { return int(hash & uint64(len(t.slots)-1)) } //nolint:gosec // a remainder

// place is the slot of the block, or the free one where it belongs.
func (t *blockTable) place(x *prefixIndex, hash uint64) int {
	i, tag := t.home(hash), tagOf(hash)
	for {
		h := &t.slots[i]
		if h.first == 0 || h.tag == tag && x.at(h.first).hash == hash {
			return i
		}
		i = (i + 1) & (len(t.slots) - 1)
	}
}

func (t *blockTable) find(x *prefixIndex, hash uint64) holders {
	if t.used == 0 {
		return holders{}
	}
	return t.slots[t.place(x, hash)]
}

// insert returns the block's holders to be added to. It is valid until the next
// insert or remove.
func (t *blockTable) insert(x *prefixIndex, hash uint64) *holders {
	if 8*(t.used+1) > 5*len(t.slots) {
		t.grow(x)
	}
	h := &t.slots[t.place(x, hash)]
	if h.first == 0 {
		h.tag = tagOf(hash)
		t.used++
	}
	return h
}

func (t *blockTable) grow(x *prefixIndex) {
	old := t.slots
	t.slots = make([]holders, max(2*len(old), 16))
	for _, h := range old {
		if h.first != 0 {
			t.slots[t.place(x, x.at(h.first).hash)] = h
		}
	}
}

// remove frees the block's slot and moves those behind it up that were pushed
// away from their own.
func (t *blockTable) remove(x *prefixIndex, hash uint64) {
	mask := len(t.slots) - 1
	gap := t.place(x, hash)
	for i := (gap + 1) & mask; t.slots[i].first != 0; i = (i + 1) & mask {
		home := t.home(x.at(t.slots[i].first).hash)
		if (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = holders{}
	t.used--
}
