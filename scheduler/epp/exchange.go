package epp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// exchange is one request on its stream.
//
// The stream's own goroutine schedules and waits for an eviction; another one,
// the reader, takes what the caller sends meanwhile: that it leaves, and later
// how the answer goes on. Whichever sends holds sending.
type exchange struct {
	caller

	s      *Server
	stream extprocv3.ExternalProcessor_ProcessServer

	id       string
	subset   subset
	body     []byte
	held     int64 // bytes of it that the server counts
	bare     bool  // the request has no body
	trailers bool  // it has trailers
	waited   time.Duration

	leave context.CancelCauseFunc // leaves the queue
	lost  chan struct{}           // closed when the gateway has sent the request on another stream

	sending sync.Mutex
	closed  bool // nothing more is sent

	lease  scheduler.Lease
	routed chan struct{} // closed once the caller was told where to send
	done   chan struct{} // closed when the reader has ended
	answer answer        // the reader's
	fault  error         // why the reader has ended, if that is the caller's fault
}

func (x *exchange) key() string { return x.pool + "/" + x.id }

// run schedules the request and sees it to its end.
func (x *exchange) run(r *scheduler.Request) error {
	ctx, leave := context.WithCancelCause(x.stream.Context())
	defer leave(nil)
	x.leave, x.lost, x.routed, x.done = leave, make(chan struct{}), make(chan struct{}), make(chan struct{})
	if !x.s.register(x) {
		return x.refuse(badRequest(http.StatusConflict, "a request with this x-request-id runs already"))
	}
	defer x.s.forget(x)
	x.s.readers.Go(x.read)

	refused := x.schedule(ctx, r)
	if refused != nil {
		return x.refuse(refused)
	}
	// However the exchange ends: nothing if its end was told.
	defer x.lease.End(scheduler.Outcome{Result: scheduler.Abandoned})
	if err := x.route(); err != nil {
		return err
	}
	x.release()
	select {
	case <-x.done:
		return x.fault
	case <-x.lost:
		return x.stop()
	case <-x.lease.Evicted():
		return x.evict()
	}
}

// schedule waits for the request's endpoint. Who isn't the primary any more when
// the endpoint comes gives it back: another may be by now.
func (x *exchange) schedule(ctx context.Context, r *scheduler.Request) *extprocv3.ImmediateResponse {
	began := x.s.cfg.Now()
	sched, known := x.s.fleet.Scheduler(x.pool)
	if !known || !x.s.primary() {
		return standby()
	}
	if !x.narrow(r) {
		return refusalOf(&scheduler.Refusal{Reason: scheduler.NoEndpoints, RetryAfter: time.Second}, 0)
	}
	count := x.s.metrics.waits(x.pool, r)
	lease, err := sched.Schedule(ctx, *r)
	x.waited = x.s.cfg.Now().Sub(began)
	if err == nil {
		switch {
		case !x.s.primary():
			err = errStandby
		case x.subset.given && !x.subset.holds(lease.Targets()):
			// What it allows is full: what llm-d says when its filters leave nothing.
			err = &scheduler.Refusal{Reason: scheduler.PoolFull, RetryAfter: time.Second}
		}
		if err != nil {
			lease.End(scheduler.Outcome{Result: scheduler.CallerFault}) // costs nothing and says nothing of the endpoint
		}
	}
	count(ctx, err, x.waited)
	if err == nil {
		x.lease = lease
		return nil
	}
	if errors.Is(err, errStandby) || errors.Is(context.Cause(ctx), errStandby) {
		return standby()
	}
	return refusalOf(err, x.waited)
}

// narrow has the scheduler avoid what a proxy's hint doesn't name. It is false
// where that leaves nothing.
func (x *exchange) narrow(r *scheduler.Request) bool {
	if !x.subset.given {
		return true
	}
	left := false
	for _, e := range x.s.fleet.Endpoints(x.pool) {
		if x.subset.has(e.URL) {
			left = true
		} else {
			r.Exclude = append(r.Exclude, e.ID)
		}
	}
	return left
}

// route tells the caller where the request goes. Others than gateways of ours
// are told its body again: they forward what comes back.
func (x *exchange) route() error {
	message, err := routed(x.lease.Targets(), x.news())
	if err != nil {
		return err
	}
	x.sending.Lock()
	defer x.sending.Unlock()
	defer func() {
		// The lease lets go of the body, too, before the reader may speak to it.
		x.lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
		close(x.routed)
	}()
	if err := x.stream.Send(message); err != nil {
		return err
	}
	switch {
	case x.bare:
	case x.own:
		if err := x.stream.Send(unchanged()); err != nil {
			return err
		}
	default:
		for piece, last := range extproc.Chunks(x.lease.Body(), extproc.MaxPiece) {
			if err := x.stream.Send(requestPiece(piece, last && !x.trailers)); err != nil {
				return err
			}
		}
	}
	if x.trailers {
		return x.stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}})
	}
	return nil
}

// news is what a gateway of ours is told beside where to send. Others' upstream
// would see it.
func (x *exchange) news() *extproc.Headers {
	var h extproc.Headers
	if x.own {
		h.Add(extproc.QueueMilliseconds, strconv.FormatInt(x.waited.Milliseconds(), 10))
		h.Add(extproc.EpochHeader, x.s.cfg.Epoch())
	}
	return &h
}

// release gives the body back: a stream may run for minutes more.
func (x *exchange) release() {
	if x.held > 0 {
		_ = x.s.hold(-x.held)
	}
	x.body, x.held = nil, 0
}

// refuse ends the exchange before it has an endpoint.
func (x *exchange) refuse(m *extprocv3.ImmediateResponse) error { return x.send(immediate(m)) }

// evict takes the endpoint back, and waits until the caller has left it.
func (x *exchange) evict() error {
	if err := x.send(immediate(evicted())); err != nil {
		return err
	}
	patience := time.NewTimer(x.s.cfg.Evicting)
	defer patience.Stop()
	select {
	case <-x.done:
	case <-x.lost:
	case <-patience.C:
	}
	return x.stop()
}

// stop ends a stream whose reader may still run: it must answer no more.
func (x *exchange) stop() error {
	x.sending.Lock()
	defer x.sending.Unlock()
	x.closed = true
	return nil
}

func (x *exchange) send(m *extprocv3.ProcessingResponse) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	if x.closed {
		return io.ErrClosedPipe
	}
	return x.stream.Send(m)
}

// read takes what the caller sends after its request, until it closes the
// stream or breaks the protocol.
func (x *exchange) read() {
	defer close(x.done)
	for {
		m, err := x.stream.Recv()
		if err != nil {
			x.leave(errLeft)
			return
		}
		select { // it may come before the one who sent the answer has noted that it did
		case <-x.routed:
		case <-x.stream.Context().Done():
			return
		}
		if x.fault = x.respond(m); x.fault != nil {
			return
		}
	}
}

// unchanged says that the body is to be sent as it came.
func unchanged() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{}},
	}}
}

func requestPiece(piece []byte, last bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
		Response: &extprocv3.CommonResponse{BodyMutation: streamed(piece, last)},
	}}}
}

func streamed(piece []byte, last bool) *extprocv3.BodyMutation {
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: piece, EndOfStream: last},
	}}
}
