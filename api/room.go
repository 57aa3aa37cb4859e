package api

import (
	"sync"
	"sync/atomic"
)

// Buffers come in eleven sizes, each twice the one before; what is larger is
// made to measure and not kept. The largest holds a context of a million tokens.
const (
	sizes    = 11
	smallest = 4 << 10
	largest  = smallest << (sizes - 1) // 4 MiB
)

// buffer is borrowed memory. Its capacity is what it holds of the room.
type buffer struct{ bytes []byte }

// room lends the memory in which bodies stand while their exchanges run, and
// bounds it.
type room struct {
	free  atomic.Int64
	pools [sizes]sync.Pool
}

func newRoom(bytes int64) *room {
	r := &room{}
	r.free.Store(bytes)
	return r
}

// take lends an empty buffer for at least n bytes, unless the room is full.
func (r *room) take(n int) (*buffer, error) {
	if size := int64(capacityFor(n)); r.free.Add(-size) < 0 {
		r.free.Add(size)
		return nil, because(noRoom, nil)
	}
	return r.lend(n), nil
}

// borrow is take for memory that is needed to finish what was begun: the room
// may be overdrawn by it, and so at most doubled.
func (r *room) borrow(n int) *buffer {
	r.free.Add(-int64(capacityFor(n)))
	return r.lend(n)
}

// grow returns a larger buffer with the same bytes, for no more than most of
// them. On an error the old one stays the caller's.
func (r *room) grow(old *buffer, most int) (*buffer, error) {
	next, err := r.take(min(2*cap(old.bytes), most))
	if err != nil {
		return old, err
	}
	next.bytes = append(next.bytes, old.bytes...)
	r.giveBack(old)
	return next, nil
}

func (r *room) giveBack(b *buffer) {
	size := cap(b.bytes)
	r.free.Add(int64(size))
	if class, ok := classOf(size); ok {
		b.bytes = b.bytes[:0]
		r.pools[class].Put(b)
	}
}

func (r *room) lend(n int) *buffer {
	if class, ok := classOf(n); ok {
		if b, ok := r.pools[class].Get().(*buffer); ok {
			return b
		}
	}
	return &buffer{bytes: make([]byte, 0, capacityFor(n))}
}

func capacityFor(n int) int {
	if class, ok := classOf(n); ok {
		return smallest << class
	}
	return n
}

// classOf is the smallest size that holds n bytes.
func classOf(n int) (int, bool) {
	for class := range sizes {
		if n <= smallest<<class {
			return class, true
		}
	}
	return 0, false
}
