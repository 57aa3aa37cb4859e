package llmd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// lease is one stream from its decision on. Two goroutines of the client's may
// work for it: one reads, for as long as the stream lives, and one writes while
// there is something to be written, so that an idle stream costs no more.
type lease struct {
	client  *Client
	peer    Peer
	stream  stream
	cancel  context.CancelFunc
	targets []scheduler.Target
	evicted chan struct{}
	session string
	band    int
	streams bool
	at      func() time.Time
	told    atomic.Int64 // milliseconds in the queue, as the picker says, and one; 0: it said nothing

	mu      sync.Mutex
	body    []byte
	out     outbox
	writing bool
	drain   *time.Timer // until the picker must have closed; nil before the end
	gone    bool        // the stream is over: there is nobody to tell
	ended   bool
	taken   bool // evicted is closed
}

var _ scheduler.Lease = (*lease)(nil)

// begin lets the lease live: its reader ends with the stream, and the stream
// at the latest drainTime after the lease's end.
func (c *Client) begin(l *lease) {
	c.counts.live.Add(1)
	c.work.Go(l.read) // Schedule's own count is still held: Wait can't have passed
}

// heard takes in how long the picker says that the request was in its queue.
func (l *lease) heard(milliseconds string) (waited time.Duration, known bool) {
	ms, err := strconv.ParseUint(milliseconds, 10, 31)
	if err != nil {
		return 0, false
	}
	l.told.Store(int64(ms) + 1)
	return time.Duration(ms) * time.Millisecond, true
}

// Told is what the picker said beside its decision: what it is called, and how
// long the request was in its queue. A `weir scheduler` says that with its
// decision, others with their word on the answer's headers, if at all.
func (l *lease) Told() (picker string, queued time.Duration, known bool) {
	ms := l.told.Load()
	return l.peer.Name(), time.Duration(max(0, ms-1)) * time.Millisecond, ms > 0
}

func (l *lease) Targets() []scheduler.Target { return l.targets }
func (l *lease) Evicted() <-chan struct{}    { return l.evicted }

func (l *lease) Body() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.body
}

// read follows what the picker says while the answer runs: it may take the
// endpoint back, and gives its notes of the session. The rest is an echo.
func (l *lease) read() {
	defer l.over()
	var e echo
	for {
		if err := l.stream.RecvMsg(&e); err != nil {
			l.lost(err)
			return
		}
		if e.body {
			continue
		}
		switch part := e.message.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			if !l.revoked(part.ImmediateResponse) {
				return
			}
		case *extprocv3.ProcessingResponse_ResponseHeaders:
			set := part.ResponseHeaders.GetResponse().GetHeaderMutation()
			l.client.sessions.keep(l.session, extproc.GetSet(set, extproc.SessionToken))
			if waited, known := l.heard(extproc.GetSet(set, extproc.QueueMilliseconds)); known {
				l.client.pace.note(l.band, waited)
			}
		default:
		}
	}
}

// over lets go of the stream's context and timer.
func (l *lease) over() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drain != nil {
		l.drain.Stop()
	}
}

// lost notes that the stream is over. The answer goes on without it.
func (l *lease) lost(err error) {
	l.mu.Lock()
	early := !l.ended
	l.gone = true
	l.mu.Unlock()
	if early {
		l.client.counts.lost.Add(1)
		if !errors.Is(err, io.EOF) { // some pickers leave the answer alone: that is no fault
			l.peer.Report(err)
		}
	}
}

// revoked reads a picker's last word. 429 or a reason of that name takes the
// endpoint back; any other is the picker's own trouble, for which no running
// answer is cut off. It reports whether the picker still listens: a `weir
// scheduler` keeps the place until it is told that the endpoint was left.
func (l *lease) revoked(m *extprocv3.ImmediateResponse) (listens bool) {
	evicts := m.GetStatus().GetCode() == http.StatusTooManyRequests ||
		strings.HasPrefix(extproc.GetSet(m.GetHeaders(), extproc.DroppedReason), extproc.EvictedReason)
	l.mu.Lock()
	early := !l.ended
	listens = evicts && l.client.cfg.Own
	l.gone = !listens
	first := !l.taken
	if early && evicts && first {
		l.taken = true
		close(l.evicted)
	}
	l.mu.Unlock()
	switch {
	case early && evicts && first:
		l.client.counts.evicted.Add(1)
	case early && !evicts:
		l.client.counts.lost.Add(1)
		said := extproc.ReadRefusal(m)
		l.client.log.Warn("a picker gave a running answer up; the answer goes on", "picker", l.peer.Name(), "error", said.Err)
	}
	return listens
}
