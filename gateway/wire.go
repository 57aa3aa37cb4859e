package gateway

// wire is one format of engines' streams. It reads an answer from its first
// event to its end, and one of them serves one answer.
type wire interface {
	// event appends what the caller shall see of one event's data to out. Done
	// says that it was the marker that ends a whole answer. The error says that
	// the engine gave up, or doesn't speak the protocol.
	event(out, data []byte) (shown []byte, done bool, failure *Error)
	// began reports whether some event had output.
	began() bool
	// preparing reports that the engine has only said that it is there: it still
	// has the time for a first byte.
	preparing() bool
	// cut appends what ends an answer that we break off when its bound is
	// reached; open is false where no part of it is left to be ended.
	cut(out []byte, choices int) (shown []byte, open bool)
}

// wire makes the one of this answer.
func (x *exchange) wire() wire {
	if x.call.Operation == Responses {
		return &native{meter: &x.meter, hideCache: x.hideCache}
	}
	r := x.rewriter()
	r.cuttable = x.purse.hold != nil
	r.texts = x.call.Operation == Completions
	return r
}

func (r *rewriter) event(out, data []byte) ([]byte, bool, *Error) {
	if string(data) == doneMarker {
		return r.closing(out), true, nil
	}
	out, failure := r.chunk(out, data)
	return out, false, failure
}

func (r *rewriter) began() bool { return r.output }

// An engine sends a chat's first chunk with its first token.
func (r *rewriter) preparing() bool { return false }
