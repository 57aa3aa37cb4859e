package gateway

import "bytes"

// maxLearn bounds how often one answer's template is learnt anew: an engine
// whose chunks have no steady form gets none.
const maxLearn = 8

// template is the form that most chunks of a stream repeat, all but a piece of
// output and the running count. It is learnt from one chunk that was looked at
// closely; a later one of the same form has the same members, so it is passed
// on without being looked at again.
type template struct {
	head []byte // the engine's bytes up to the output, its opening quote included
	tail []byte // from the closing quote to the running count, or to the end

	headOut, tailOut []byte // what the caller sees in their place
	counted          bool   // a running count follows the tail, and ends the chunk
	learnt           int
}

// match takes a chunk apart that has the template's form.
func (t *template) match(p []byte) (output, usage []byte, ok bool) {
	if len(t.head) == 0 || !bytes.HasPrefix(p, t.head) {
		return nil, nil, false
	}
	from := len(t.head)
	to := skipString(p, from-1) - 1
	if to <= from || !bytes.HasPrefix(p[to:], t.tail) {
		return nil, nil, false
	}
	rest := to + len(t.tail)
	if !t.counted {
		return p[from:to], nil, rest == len(p)
	}
	if rest >= len(p) || p[rest] != '{' || skipValue(p, rest) != len(p)-1 {
		return nil, nil, false
	}
	return p[from:to], p[rest : len(p)-1], true
}

// learn takes the form of a chunk for which the edits are. At is where the
// opening quote of its output stands.
func (t *template) learn(p []byte, at int, e *edits) {
	if t.learnt++; t.learnt > maxLearn {
		t.head = nil
		return
	}
	from, to, end := at+1, skipString(p, at)-1, len(p)
	u := usageMember(p)
	t.counted = u.found()
	if t.counted {
		if u.key < to || u.end != len(p)-1 || p[u.value] != '{' {
			t.head = nil
			return
		}
		end = u.value
	}
	var ok1, ok2 bool
	t.head, t.tail = bytes.Clone(p[:from]), bytes.Clone(p[to:end])
	t.headOut, ok1 = e.applyWithin(p, 0, from)
	t.tailOut, ok2 = e.applyWithin(p, to, len(p))
	if !ok1 || !ok2 {
		t.head = nil
	}
}
