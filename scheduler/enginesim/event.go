package enginesim

import (
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// The media of blocks, in vLLM's words.
const (
	mediumGPU     = "GPU"
	mediumHost    = "CPU"
	mediumStorage = "DISK"
)

// keptBatches is how many batches are sent again on demand, as in vLLM.
const keptBatches = 10_000

// eventLog is what one cache publishes of itself: vLLM's KV events. A nil one
// publishes nothing.
type eventLog struct {
	rank   int
	events []any // of the next batch; the machine's

	mu      sync.Mutex
	next    uint64   // sequence number of the next batch
	batches [][]byte // the latest ones
	readers map[chan batch]struct{}
}

// batch is one message.
type batch struct {
	seq     uint64
	payload []byte
}

func newEventLog(rank int) *eventLog {
	return &eventLog{rank: rank, readers: map[chan batch]struct{}{}}
}

// stored tells of a block of a sequence that was computed, with its tokens.
func (l *eventLog) stored(s *sequence, i int) {
	if l == nil {
		return
	}
	tokens := make([]uint64, 0, blockSize)
	for _, t := range s.tokens[i*blockSize : (i+1)*blockSize] {
		tokens = append(tokens, uint64(t))
	}
	var parent, extra any
	if i > 0 {
		parent = s.hashes[i-1]
	} else if s.salt != "" {
		extra = []any{[]any{s.salt}}
	}
	l.events = append(l.events, []any{"BlockStored", []uint64{s.hashes[i]}, parent, tokens, blockSize, nil, mediumGPU, nil, extra})
}

// copied tells of a block that came into another tier: without its tokens, as
// vLLM's connectors do.
func (l *eventLog) copied(hash uint64, medium string) {
	if l != nil {
		l.events = append(l.events, []any{"BlockStored", []uint64{hash}, nil, []uint64{}, blockSize, nil, medium})
	}
}

func (l *eventLog) removed(hash uint64, medium string) {
	if l != nil {
		l.events = append(l.events, []any{"BlockRemoved", []uint64{hash}, medium})
	}
}

// flush publishes what has happened since the last time. A reader that is too
// slow misses it.
func (l *eventLog) flush(now time.Time) {
	if l == nil || len(l.events) == 0 {
		return
	}
	payload, err := msgpack.Marshal([]any{float64(now.UnixNano()) / 1e9, l.events, l.rank})
	l.events = l.events[:0]
	if err != nil { // never: it is made of numbers and texts
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := batch{l.next, payload}
	l.next++
	if len(l.batches) == keptBatches {
		l.batches = l.batches[1:]
	}
	l.batches = append(l.batches, payload)
	for r := range l.readers {
		select {
		case r <- b:
		default:
		}
	}
}

// since lists the batches that are kept, from a sequence number on.
func (l *eventLog) since(seq uint64) (all []batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.next - uint64(len(l.batches))
	for i, payload := range l.batches {
		if at := first + uint64(i); at >= seq {
			all = append(all, batch{at, payload})
		}
	}
	return all
}

// read returns a channel of what is published from now on, until leave.
func (l *eventLog) read() (r chan batch, leave func()) {
	r = make(chan batch, keptBatches)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = struct{}{}
	return r, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.readers, r)
	}
}
