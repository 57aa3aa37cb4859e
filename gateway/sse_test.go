package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// split reads the whole of r and returns its events, and what stopped it.
func split(r io.Reader, limit int) ([]string, error) {
	s := splitter{limit: limit}
	var events []string
	for {
		err := s.fill(r)
		for {
			ev, ok := s.next()
			if !ok {
				break
			}
			if ev.failed {
				events = append(events, "!"+string(ev.data))
				continue
			}
			events = append(events, string(ev.data))
		}
		if err != nil {
			return events, err
		}
	}
}

func TestSplitterFindsWholeEvents(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	tests := []struct {
		name  string
		bytes string
		want  []string
	}{
		{"nothing", "", nil},
		{"one event", "data: {}\n\n", []string{"{}"}},
		{"two in one read", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"carriage returns", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"mixed line ends", "data: a\r\n\ndata: b\n\r\n", []string{"a", "b"}},
		{"no space after the colon", "data:a\n\n", []string{"a"}},
		{"only one space is dropped", "data:  a\n\n", []string{" a"}},
		{"several data lines are joined", "data: a\ndata: b\ndata: c\n\ndata: d\n\n", []string{"a\nb\nc", "d"}},
		{"other fields and comments end here", ": hi\n\nevent: x\nid: 7\ndata: a\nretry: 1\n\n", []string{"a"}},
		{"an event without data is none", "event: ping\n\ndata: a\n\n", []string{"a"}},
		{"a field named error", "error: {\"code\":500}\n\n", []string{`!{"code":500}`}},
		{"an empty data line is data", "data\n\ndata:\n\n", []string{"", ""}},
		{"a longer field name is another field", "database: a\n\ndata: b\n\n", []string{"b"}},
		{"blank lines between events", "\n\n\ndata: a\n\n\n\ndata: b\n\n", []string{"a", "b"}},
		{"a line of 1 MiB", "data: " + long + "\n\ndata: b\n\n", []string{long, "b"}},
		{"characters of several bytes", "data: 你🌍é\n\n", []string{"你🌍é"}},
		{"an event without its blank line is not whole", "data: a\n\ndata: b\n", []string{"a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			readers := map[string]io.Reader{
				"whole":           strings.NewReader(tt.bytes),
				"byte by byte":    iotest.OneByteReader(strings.NewReader(tt.bytes)),
				"in halves":       iotest.HalfReader(strings.NewReader(tt.bytes)),
				"with data + EOF": iotest.DataErrReader(strings.NewReader(tt.bytes)),
			}
			for how, r := range readers {
				got, err := split(r, 4<<20)
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s: stopped by %v, want EOF", how, err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%.500s", how, diff)
				}
			}
		})
	}
}

func TestSplitterRefusesEventsBeyondItsLimit(t *testing.T) {
	t.Parallel()
	endless := io.MultiReader(strings.NewReader("data: a\n\ndata: "), neverEnding('x'))
	got, err := split(endless, 100_000)
	if !errors.Is(err, errEventTooLong) {
		t.Errorf("stopped by %v, want %v", err, errEventTooLong)
	}
	if diff := cmp.Diff([]string{"a"}, got); diff != "" {
		t.Errorf("events before the long one (-want +got):\n%s", diff)
	}
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestSplitterForgetsTheBufferOfAHugeEvent(t *testing.T) {
	t.Parallel()
	s := splitter{limit: 4 << 20}
	r := io.MultiReader(
		strings.NewReader("data: "+strings.Repeat("x", 1<<20)+"\n\n"),
		strings.NewReader("data: b\n\n"))
	for range 2000 {
		err := s.fill(r)
		for {
			if _, ok := s.next(); !ok {
				break
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
	}
	if cap(s.buf) > maxReadSize {
		t.Errorf("a buffer of %d bytes stays, want at most %d", cap(s.buf), maxReadSize)
	}
}

func TestSplitterGivesUpOnAReaderThatReadsNothing(t *testing.T) {
	t.Parallel()
	s := splitter{limit: 1000}
	if err := s.fill(readerFunc(func([]byte) (int, error) { return 0, nil })); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v, want %v", err, io.ErrNoProgress)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// reference splits by lines, after the event stream's specification, without
// regard to memory or speed.
func reference(b []byte) []string {
	var events []string
	var data []string
	failed := false
	lines := strings.Split(string(b), "\n")
	for _, line := range lines[:len(lines)-1] { // the last one has no end
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			if data != nil {
				mark := ""
				if failed {
					mark = "!"
				}
				events = append(events, mark+strings.Join(data, "\n"))
			}
			data, failed = nil, false
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		if name == "data" || name == "error" {
			data = append(data, strings.TrimPrefix(value, " "))
			failed = failed || name == "error"
		}
	}
	return events
}

// FuzzSplitter: however the bytes are cut into reads, the events are those of
// the specification.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("data: a\n\ndata: b\r\n\r\n: c\n\nerror: d\n\n"), uint64(1))
	f.Add([]byte("data: a\ndata: b\n\n\n\ndata\n\n"), uint64(2))
	f.Add([]byte("data: "+strings.Repeat("y", 9000)+"\n\ndata: [DONE]\n\n"), uint64(3))
	f.Add([]byte("\r\n\rdata:x\r\r\n\n"), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		want := reference(b)
		got, err := split(&chopped{b, rand.New(rand.NewPCG(seed, 0))}, 1<<30)
		if !errors.Is(err, io.EOF) {
			t.Fatalf("stopped by %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-specification +got):\n%s", diff)
		}
	})
}

// chopped reads pieces of random lengths.
type chopped struct {
	rest []byte
	rand *rand.Rand
}

func (c *chopped) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:1+c.rand.IntN(min(len(c.rest), 50))])
	c.rest = c.rest[n:]
	return n, nil
}

func BenchmarkSplitter(b *testing.B) {
	var stream bytes.Buffer
	for i := range 64 {
		fmt.Fprintf(&stream, "data: %s\n\n", vllmChunk(fmt.Sprintf("token %d", i), i+1))
	}
	b.SetBytes(int64(stream.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if got, _ := split(bytes.NewReader(stream.Bytes()), 4<<20); len(got) != 64 {
			b.Fatal(len(got))
		}
	}
}
