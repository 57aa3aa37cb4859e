package enginesim

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"weir/scheduler/kvevents/zmtp"
)

// endOfReplay is the sequence number after the last batch that is sent again.
const endOfReplay = ^uint64(0)

// publisher serves the event logs over ZeroMQ.
type publisher struct {
	mu    sync.Mutex
	open  map[interface{ Close() error }]struct{} // listeners and connections
	ended bool
	all   sync.WaitGroup
}

// Publish serves a rank's KV events to who connects to the one listener, and
// those that were missed to who asks at the other, until Close. It needs
// Config.KVEvents.
func (e *Engine) Publish(rank int, events, replay net.Listener) error {
	if rank < 0 || rank >= len(e.ranks) || e.ranks[rank].kv.log == nil {
		return fmt.Errorf("rank %d has no events", rank)
	}
	log, topic := e.ranks[rank].kv.log, fmt.Sprintf("kv@sim-%d@%s", rank, e.cfg.Models[0])
	e.publisher.serve(events, func(c net.Conn) { publish(c, log, topic) })
	if replay != nil {
		e.publisher.serve(replay, func(c net.Conn) { sendAgain(c, log) })
	}
	return nil
}

// keep notes what is to be closed at the end; false: that has come.
func (p *publisher) keep(c interface{ Close() error }) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		_ = c.Close()
		return false
	}
	if p.open == nil {
		p.open = map[interface{ Close() error }]struct{}{}
	}
	p.open[c] = struct{}{}
	return true
}

func (p *publisher) drop(c interface{ Close() error }) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

func (p *publisher) serve(l net.Listener, handle func(net.Conn)) {
	if !p.keep(l) {
		return
	}
	p.all.Go(func() {
		defer p.drop(l)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !p.keep(c) {
				return
			}
			p.all.Go(func() {
				defer p.drop(c)
				handle(c)
			})
		}
	})
}

func (p *publisher) close() {
	p.mu.Lock()
	p.ended = true
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.all.Wait()
}

// publish is a PUB socket with one peer, which gets everything whatever it
// subscribes to.
func publish(c net.Conn, log *eventLog, topic string) {
	z, err := zmtp.Open(c, "PUB", maxBodyBytes)
	if err != nil {
		return
	}
	if _, err := z.Receive(); err != nil { // the subscription
		return
	}
	batches, leave := log.read()
	defer leave()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for err := error(nil); err == nil; {
			_, err = z.Receive()
		}
	}()
	defer func() { _ = c.Close(); <-gone }()
	for {
		select {
		case b := <-batches:
			if z.Send([]byte(topic), binary.BigEndian.AppendUint64(nil, b.seq), b.payload) != nil {
				return
			}
		case <-gone:
			return
		}
	}
}

// sendAgain is a ROUTER socket with one peer, that asks for batches by the
// number of the first.
func sendAgain(c net.Conn, log *eventLog) {
	z, err := zmtp.Open(c, "ROUTER", maxBodyBytes)
	for err == nil {
		var m [][]byte
		if m, err = z.Receive(); err != nil || len(m) != 2 || len(m[1]) != 8 {
			return
		}
		for _, b := range log.since(binary.BigEndian.Uint64(m[1])) {
			if err = z.Send(nil, binary.BigEndian.AppendUint64(nil, b.seq), b.payload); err != nil {
				return
			}
		}
		err = z.Send(nil, binary.BigEndian.AppendUint64(nil, endOfReplay), nil)
	}
}
