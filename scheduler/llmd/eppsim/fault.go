package eppsim

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Moment is when in an exchange a fault happens.
type Moment int

// The moments, in their order.
const (
	Never     Moment = iota
	Reading          // after the headers, while the body comes
	Queued           // instead of the queue
	Deciding         // instead of the decision, with a place taken
	Streaming        // at the first message of the answer's body
)

// Fault is what a server does instead of what it should. The stream ends with
// what Do returns. Decision is what should have been said, when Deciding.
type Fault struct {
	At Moment
	Do func(stream Stream, decision []*extprocv3.ProcessingResponse) error
}

// Script gives each of the next exchanges a fault, in turn.
func (s *Server) Script(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// fault is that of the next exchange.
func (s *Server) fault() Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == 0 {
		return Fault{}
	}
	f := s.faults[0]
	s.faults = s.faults[1:]
	return f
}

// Die ends the stream as a process that dies does.
func Die(at Moment) Fault {
	return Fault{at, func(Stream, []*extprocv3.ProcessingResponse) error {
		return status.Error(codes.Unavailable, "the picker died")
	}}
}

// HangUp ends the stream in good order, without a word.
func HangUp(at Moment) Fault {
	return Fault{at, func(Stream, []*extprocv3.ProcessingResponse) error { return nil }}
}

// Silence says nothing until the caller leaves.
func Silence(at Moment) Fault {
	return Fault{at, func(s Stream, _ []*extprocv3.ProcessingResponse) error {
		<-s.Context().Done()
		return nil
	}}
}

// Say sends these messages instead, and then ends the stream in good order.
func Say(at Moment, messages ...*extprocv3.ProcessingResponse) Fault {
	return Fault{at, func(s Stream, _ []*extprocv3.ProcessingResponse) error {
		for _, m := range messages {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}}
}

// Refuse says no in these words.
func Refuse(r *extprocv3.ImmediateResponse) Fault { return Say(Queued, immediate(r)) }

// Forever sends the message until the caller has enough.
func Forever(at Moment, m *extprocv3.ProcessingResponse) Fault {
	return Fault{at, func(s Stream, decision []*extprocv3.ProcessingResponse) error {
		if len(decision) > 0 {
			if err := s.Send(decision[0]); err != nil {
				return err
			}
		}
		for {
			if err := s.Send(m); err != nil {
				return err
			}
		}
	}}
}

// Twice says the decision, another one, and the first again; then the answer
// is waited for.
func Twice(other []*extprocv3.ProcessingResponse) Fault {
	return Fault{Deciding, func(s Stream, decision []*extprocv3.ProcessingResponse) error {
		for _, m := range append(append(append([]*extprocv3.ProcessingResponse(nil), decision...), other...), decision...) {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		for {
			if _, err := s.Recv(); err != nil {
				return nil //nolint:nilerr // the client's end, in whatever way
			}
		}
	}}
}
