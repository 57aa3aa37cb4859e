package kvevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"weir/scheduler"
	"weir/scheduler/kvevents/zmtp"
)

const (
	maxReplayed = 1 << 17 // messages
	maxUntold   = 1 << 12 // changes
	replayTime  = 10 * time.Second
	// replayEvery bounds how often a source that misses messages is asked for
	// them again.
	replayEvery = time.Second
	// endOfReplay is the sequence number after the last one that is replayed.
	endOfReplay = ^uint64(0)
)

var errReplay = errors.New("more messages than can be taken")

// message is one that a source published. Messages are numbered from 0 when an
// engine starts.
type message struct {
	seq     uint64
	model   string
	payload []byte
}

// order is how far the messages of a source were taken.
type order struct {
	began  bool
	next   uint64 // sequence number that is to come
	last   uint64 // hash of the latest message, by which the engine is known again
	filled uint64 // what was replayed up to here comes once more, and was taken
	asked  time.Time
}

// arrive takes a message in its place. fresh is the first one of a connection:
// the engine may be another one by then.
func (f *Follower) arrive(ctx context.Context, m message, fresh bool) {
	o := &f.order
	switch {
	case o.began && m.seq < o.filled:
		return
	case m.seq == 0 && (fresh || !o.began):
		f.restart()
	case !o.began, m.seq < o.next && fresh:
		f.lost(m.seq)
	case m.seq < o.next:
		f.reordered.Add(1)
		return // it counted as missing when a later one came
	case m.seq > o.next:
		f.gaps.Add(1)
		if f.source.Replay != nil && time.Since(o.asked) >= replayEvery {
			o.asked = time.Now()
			f.replay(ctx)
		}
		switch {
		case m.seq < o.next:
			return
		case m.seq > o.next:
			f.lost(m.seq)
		}
	}
	f.apply(m)
}

// restart begins with an engine that has nothing cached.
func (f *Follower) restart() {
	f.ledger.empty()
	f.order = order{began: true, asked: f.order.asked}
}

// lost begins in the middle: what the engine has from before is not known.
func (f *Follower) lost(seq uint64) {
	f.forget()
	f.order = order{began: true, next: seq, asked: f.order.asked}
	f.log.Warn("kv events: some were missed; what is sent there decides until answers agree with what comes", "sequence", seq)
}

func (f *Follower) forget() {
	f.ledger.forget()
	f.feed.CacheMissed(f.source.ID)
}

// apply takes the message that is next.
func (f *Follower) apply(m message) {
	f.order.next, f.order.last = m.seq+1, xxhash.Sum64(m.payload)
	f.messages.Add(1)
	l := f.ledger
	l.report.Changes = l.report.Changes[:0]
	f.model = cmp.Or(m.model, f.model) // what is replayed comes without
	if err := decode(m.payload, f.take); err != nil {
		f.malformed.Add(1)
		f.forget() // part of it was understood, and nobody knows which
		return
	}
	f.malformed.Add(uint64(l.malformed)) //nolint:gosec // counts
	f.orphans.Add(uint64(l.orphans))     //nolint:gosec // counts
	l.malformed, l.orphans = 0, 0
	if l.full {
		f.forget()
		f.log.Warn("kv events: more blocks than can be kept; all were forgotten", "blocks", maxKnown)
		return
	}
	f.tell()
}

// take takes an event of a message. A message may say far more than it is long,
// so that it is not kept until its end.
func (f *Follower) take(e *event) {
	f.ledger.take(e)
	if len(f.ledger.report.Changes) >= maxUntold {
		f.tell()
	}
}

// tell reports what there is to report.
func (f *Follower) tell() {
	r := &f.ledger.report
	r.Model = cmp.Or(f.model, f.source.Model)
	f.feed.CacheChanged(f.source.ID, *r)
	r.Clear, r.Changes = false, r.Changes[:0]
}

// replay asks for what comes after the messages that were taken, or for all
// there is if the engine doesn't have the last one of those: then it is another.
func (f *Follower) replay(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	f.order.filled = 0 // if this fails, what comes may be of another engine
	same, err := false, error(nil)
	if f.order.began && f.order.next > 0 {
		same, err = f.ask(within, f.order.next-1)
	}
	if err == nil && !same {
		f.order.began = false
		_, err = f.ask(within, 0)
	}
	if err != nil {
		if ctx.Err() == nil {
			f.log.Warn("kv events: replay", "error", err)
		}
		return
	}
	f.order.filled = f.order.next
}

// ask takes the messages from one on. The first one is known already unless it
// is to be all; same tells that it is the one that is known.
func (f *Follower) ask(ctx context.Context, from uint64) (same bool, err error) {
	z, end, err := open(ctx, f.source.Replay, "DEALER")
	if err != nil {
		return false, err
	}
	defer end()
	if err := z.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return false, err
	}
	for n := range maxReplayed {
		m, err := replayed(z)
		switch {
		case err != nil:
			return same, err
		case m.seq == endOfReplay && n == 0 && !f.order.began: // it has published nothing
			f.restart()
			f.tell()
			return false, nil
		case m.seq == endOfReplay:
			return same, nil
		case n == 0 && f.order.began:
			if m.seq != from || xxhash.Sum64(m.payload) != f.order.last {
				return false, nil
			}
			same = true
			continue
		case n == 0 && m.seq == 0:
			f.restart()
		case m.seq != f.order.next || !f.order.began:
			f.lost(m.seq)
		}
		f.replays.Add(1)
		f.apply(m)
	}
	return same, errReplay
}

// replayed reads one message of a replay: nothing, its number, and what it says.
// The last one says nothing.
func replayed(z *zmtp.Conn) (message, error) {
	m, err := z.Receive()
	if err != nil {
		return message{}, err
	}
	if len(m) < 3 || len(m[0]) != 0 || len(m[len(m)-2]) != 8 {
		return message{}, fmt.Errorf("%w: a replayed message of %d frames", zmtp.ErrProtocol, len(m))
	}
	return message{seq: binary.BigEndian.Uint64(m[len(m)-2]), payload: m[len(m)-1]}, nil
}

var _ Feed = (*scheduler.Embedded)(nil)
