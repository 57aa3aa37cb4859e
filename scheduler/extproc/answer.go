package extproc

import (
	"bytes"
	"errors"
	"fmt"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// A peer that breaks the protocol is told by these; none of them says that it
// has gone.
var (
	ErrGarbage       = errors.New("the picker's answer is not of the protocol")
	ErrTooMuch       = errors.New("the picker's answer is too large")
	ErrNoDestination = errors.New("the picker's answer names no destination")
)

const (
	maxDestinations = 16
	maxDestination  = 256
	maxHeaderValue  = 1 << 10
	maxHeaders      = 256
	bodyGrowth      = 1 << 20 // how much longer than what was sent a body may come back
	fewMessages     = 1 << 10 // that carry next to nothing
	usefulBytes     = 1 << 10 // in each of the rest
)

// Answer collects what a picker decides of one request. Its memory is bounded
// by the request's size whatever the picker sends.
type Answer struct {
	Destinations []string    // host:port, in order of preference
	Headers      [][2]string // for the engine; only those of Upstream
	Epoch        string      // who decided, where a `weir scheduler` says it: EpochHeader
	Queued       string      // milliseconds in the queue, likewise: QueueMilliseconds

	sent    []byte // what the picker was given
	same    int    // so many bytes of what came are those of sent
	changed []byte // what came, once it differs
	taken   int    // messages
	decided bool
	done    bool
}

// NewAnswer is the answer to a request with this body, which it keeps.
func NewAnswer(sent []byte) *Answer { return &Answer{sent: sent} }

// Done reports whether the answer is whole.
func (a *Answer) Done() bool { return a.done }

// Body is what to send to the engine: the very slice that the picker was
// given, where it changed nothing.
func (a *Answer) Body() []byte {
	if a.changed == nil && a.same == len(a.sent) {
		return a.sent
	}
	if a.changed == nil {
		return a.sent[:a.same:a.same]
	}
	return a.changed
}

// Take reads one message of the request phase that is no refusal.
func (a *Answer) Take(m *extprocv3.ProcessingResponse) error {
	if a.taken++; a.taken > fewMessages+(len(a.sent)+bodyGrowth)/usefulBytes {
		return fmt.Errorf("%w: %d messages", ErrTooMuch, a.taken)
	}
	switch part := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		if a.decided {
			return nil // said twice: the first counts
		}
		a.decided = true
		return a.decide(part.RequestHeaders.GetResponse().GetHeaderMutation(), m)
	case *extprocv3.ProcessingResponse_RequestBody:
		if !a.decided {
			return fmt.Errorf("%w: a body before the decision", ErrGarbage)
		}
		mutation := part.RequestBody.GetResponse().GetBodyMutation()
		if mutation == nil && a.same == 0 && a.changed == nil { // the body goes as it is
			a.same, a.done = len(a.sent), true
			return nil
		}
		return a.piece(mutation.GetStreamedResponse())
	default:
		return fmt.Errorf("%w: %T in the request phase", ErrGarbage, part)
	}
}

// decide reads where to and with what. The header is what Envoy follows; the
// metadata says the same.
func (a *Answer) decide(set *extprocv3.HeaderMutation, m *extprocv3.ProcessingResponse) error {
	if n := len(set.GetSetHeaders()); n > maxHeaders {
		return fmt.Errorf("%w: %d headers", ErrTooMuch, n)
	}
	a.Epoch, a.Queued = GetSet(set, EpochHeader), GetSet(set, QueueMilliseconds)
	where := GetSet(set, Destination)
	if where == "" {
		where = m.GetDynamicMetadata().GetFields()[DestinationSpace].GetStructValue().GetFields()[Destination].GetStringValue()
	}
	var err error
	if a.Destinations, err = SplitHosts(where); err != nil {
		return err
	}
	for _, name := range Upstream() {
		value := GetSet(set, name)
		switch {
		case value == "":
		case len(value) > maxHeaderValue || !isPrintable(value):
			return fmt.Errorf("%w: header %s of %d bytes", ErrGarbage, name, len(value))
		default:
			a.Headers = append(a.Headers, [2]string{name, value})
		}
	}
	return nil
}

func (a *Answer) piece(p *extprocv3.StreamedBodyResponse) error {
	if p == nil {
		return fmt.Errorf("%w: a body that is not streamed", ErrGarbage)
	}
	if a.done {
		return nil
	}
	body := p.GetBody()
	if limit := len(a.sent) + bodyGrowth; max(a.same, len(a.changed))+len(body) > limit {
		return fmt.Errorf("%w: a body of more than %d bytes", ErrTooMuch, limit)
	}
	if a.changed == nil && bytes.HasPrefix(a.sent[a.same:], body) {
		a.same += len(body)
	} else {
		if a.changed == nil {
			a.changed = append(make([]byte, 0, len(a.sent)+len(body)), a.sent[:a.same]...)
		}
		a.changed = append(a.changed, body...)
	}
	a.done = p.GetEndOfStream()
	return nil
}
