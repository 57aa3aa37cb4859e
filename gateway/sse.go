package gateway

import (
	"bytes"
	"errors"
	"io"
)

var errEventTooLong = errors.New("event longer than the limit")

const (
	doneMarker = "[DONE]"
	dataField  = "data"
	errorField = "error"

	readSize    = 4 << 10  // first size of a stream's buffer: an idle stream holds no more
	maxReadSize = 64 << 10 // up to which it grows for bursts; a single longer event still grows it
)

// event is one server-sent event. Only its data matters on this wire: comments,
// ids and event names of an engine end here.
type event struct {
	data   []byte // joined data lines; valid until the next call of fill
	failed bool   // the data came in a field named error, which some engines send
}

// splitter cuts bytes into whole server-sent events. It looks at bytes only,
// so a character that is cut between two reads is never seen in halves. Lines
// end with \n or \r\n.
type splitter struct {
	limit int // longest event in bytes

	buf  []byte // what was read and not yet given out starts at head
	head int    // start of the present event

	// Progress within the present event, as offsets from head, so that an
	// event that arrives byte by byte is scanned once.
	line int   // start of the line that is being looked for
	scan int   // up to where that line has been searched
	ev   event // the lines so far
	has  bool  // ev has a data line
	from int   // of a single data line, whose bytes may yet move with buf
	to   int
	join []byte // where an event has several data lines
}

// fill reads once from r. It may return bytes and an error together: whole
// events come first, then the error counts.
func (s *splitter) fill(r io.Reader) error {
	if s.head == len(s.buf) {
		s.buf, s.head = s.buf[:0], 0
		if cap(s.buf) > maxReadSize {
			s.buf = nil // one huge event must not stay with a long stream
		}
	}
	if len(s.buf) == cap(s.buf) {
		s.makeRoom()
	}
	if len(s.buf)-s.head > s.limit {
		return errEventTooLong
	}
	for range 100 {
		n, err := r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		if n > 0 || err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// makeRoom moves the present event to the front, into a larger buffer where
// the burst or the event filled the old one.
func (s *splitter) makeRoom() {
	rest := s.buf[s.head:]
	size := max(cap(s.buf), readSize)
	if len(rest) > size/2 || s.head > size/2 && size < maxReadSize {
		size *= 2
	}
	if size == cap(s.buf) {
		s.buf = s.buf[:copy(s.buf, rest)]
	} else {
		s.buf = append(make([]byte, 0, size), rest...)
	}
	s.head = 0
}

// next returns the next whole event that has data, if the buffer holds one.
func (s *splitter) next() (event, bool) {
	for {
		rest := s.buf[s.head:]
		i := bytes.IndexByte(rest[s.scan:], '\n')
		if i < 0 {
			s.scan = len(rest)
			return event{}, false
		}
		end := s.scan + i
		line := bytes.TrimSuffix(rest[s.line:end], []byte{'\r'})
		start := s.line
		s.line, s.scan = end+1, end+1
		if len(line) > 0 {
			s.field(line, start)
			continue
		}
		ev, has := s.ev, s.has
		if has && s.join == nil {
			ev.data = rest[s.from:s.to]
		}
		s.head += end + 1
		s.line, s.scan, s.ev, s.has, s.join = 0, 0, event{}, false, nil
		if has {
			return ev, true
		}
	}
}

// field takes in one line, which starts at offset start of the event.
func (s *splitter) field(line []byte, start int) {
	name, _, _ := bytes.Cut(line, []byte{':'})
	failed := string(name) == errorField
	if !failed && string(name) != dataField {
		return
	}
	from := min(len(name)+1, len(line))
	if from < len(line) && line[from] == ' ' {
		from++
	}
	s.ev.failed = s.ev.failed || failed
	if !s.has {
		s.has, s.from, s.to = true, start+from, start+len(line)
		return
	}
	if s.join == nil {
		s.join = append(s.join, s.buf[s.head+s.from:s.head+s.to]...)
	}
	s.join = append(append(s.join, '\n'), line[from:]...)
	s.ev.data = s.join
}

// last returns the event that the end of the stream cut short before its blank
// line, if it has data.
func (s *splitter) last() (event, bool) {
	s.buf = append(s.buf, "\n\n"...)
	return s.next()
}
