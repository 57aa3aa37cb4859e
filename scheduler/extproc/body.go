package extproc

import "iter"

// Chunks cuts a body into pieces of at most size bytes and says which is the
// last. An empty body is one empty piece: the end must be on a body message.
func Chunks(body []byte, size int) iter.Seq2[[]byte, bool] {
	return func(yield func([]byte, bool) bool) {
		for len(body) > size {
			if !yield(body[:size:size], false) {
				return
			}
			body = body[size:]
		}
		yield(body, true)
	}
}
