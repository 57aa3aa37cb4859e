package admission

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	// maxIntents bounds what a journal holds at once.
	maxIntents = 1 << 17
	// compactAt is the size in bytes from which a journal is written anew, if
	// most of it is past.
	compactAt = 8 << 20

	journalName = "intents"
)

// The kinds of lines.
const (
	putLine  = '+'
	noteLine = '~'
	dropLine = '-'
)

// Journal keeps intents in a file, for a replica that has no Redis or whose
// Redis is away. A line is in the file when put returns: it survives the
// process, not the machine's loss of power. What an earlier process left in the
// folder is an orphan of this one.
//
// Each line is a checksum, what it does and its content. One that is torn is
// passed over; so is the line that ran into it.
type Journal struct {
	path string
	lock *os.File

	mu      sync.Mutex
	file    *os.File
	size    int64
	buf     []byte
	torn    bool // the last write failed: there may be half a line
	live    map[string]*Intent
	orphans map[string]*Intent
}

// OpenJournal opens the folder, and makes it where it is missing. It fails when
// another process has it.
func OpenJournal(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal: %s is in use by another process: %w", dir, err), lock.Close())
	}
	j := &Journal{path: filepath.Join(dir, journalName), lock: lock, live: map[string]*Intent{}, orphans: map[string]*Intent{}}
	err = j.replay()
	if err == nil { // else nothing may take its place
		err = j.compact()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open journal: %w", err), j.Close())
	}
	return j, nil
}

// Close gives the folder back. The intents in it stay.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if j.file != nil {
		err = j.file.Close()
		j.file = nil
	}
	return errors.Join(err, j.lock.Close())
}

// put keeps an intent. Its errors are ErrFull and those of the disk.
func (j *Journal) put(in *Intent) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.live)+len(j.orphans) >= maxIntents {
		return ErrFull
	}
	kept := *in
	j.live[in.Request] = &kept // first: the file may be written anew at once
	if err := j.write(j.line(j.buf[:0], putLine, in.encode())); err != nil {
		delete(j.live, in.Request)
		return err
	}
	return nil
}

// drop forgets an intent, kept or not.
func (j *Journal) drop(request string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.live[request] == nil {
		return nil
	}
	delete(j.live, request)
	return j.write(j.line(j.buf[:0], dropLine, []byte(request)))
}

// note keeps the progress of those of the requests that the journal has.
func (j *Journal) note(progress []Progress) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.buf[:0]
	for i := range progress {
		p := &progress[i]
		if in := j.live[p.Request]; in != nil {
			mark := p.mark()
			in.note(mark)
			lines = j.line(lines, noteLine, []byte(p.Request+" "+mark))
		}
	}
	return j.write(lines)
}

// left returns at most so many intents of earlier processes.
func (j *Journal) left(most int) []Intent {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]Intent, 0, min(most, len(j.orphans)))
	for _, in := range j.orphans {
		if len(out) == most {
			break
		}
		out = append(out, *in)
	}
	return out
}

// forget drops intents of earlier processes.
func (j *Journal) forget(settled []Intent) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.buf[:0]
	for i := range settled {
		id := settled[i].Request
		if j.orphans[id] != nil {
			delete(j.orphans, id)
			lines = j.line(lines, dropLine, []byte(id))
		}
	}
	return j.write(lines)
}

// line appends one line.
func (j *Journal) line(to []byte, kind byte, content []byte) []byte {
	sum := crc32.Update(crc32.ChecksumIEEE([]byte{kind}), crc32.IEEETable, content)
	to = fmt.Appendf(to, "%08x ", sum)
	to = append(to, kind)
	return append(append(to, content...), '\n')
}

// write appends lines to the file. It holds mu.
func (j *Journal) write(lines []byte) error {
	j.buf = lines[:0]
	if len(lines) == 0 {
		return nil
	}
	if j.file == nil {
		return errors.New("admission: the journal is closed")
	}
	if j.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := j.file.Write(lines)
	j.size += int64(n)
	if j.torn = err != nil; j.torn {
		return fmt.Errorf("admission: write journal: %w", err)
	}
	if j.size > compactAt && j.size > 4*j.weight() {
		return j.compact()
	}
	return nil
}

// weight guesses how many bytes the journal would have, written anew.
func (j *Journal) weight() int64 {
	const line = 512
	return int64(len(j.live)+len(j.orphans)) * line
}

// compact writes what is kept into a new file, which takes the place of the
// old one.
func (j *Journal) compact() error {
	fresh, err := os.OpenFile(j.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(fresh, 1<<16)
	for _, in := range slices.Concat(slices.Collect(maps.Values(j.orphans)), slices.Collect(maps.Values(j.live))) {
		_, _ = w.Write(j.line(nil, putLine, in.encode())) // Flush tells
		p := Progress{Dispatched: in.Dispatched, Input: in.Input, Output: in.Output}
		_, _ = w.Write(j.line(nil, noteLine, []byte(in.Request+" "+p.mark())))
	}
	if err := errors.Join(w.Flush(), os.Rename(fresh.Name(), j.path)); err != nil {
		return errors.Join(err, fresh.Close())
	}
	if j.file != nil {
		_ = j.file.Close() // a file that is gone
	}
	j.file, j.torn = fresh, false
	j.size, err = fresh.Seek(0, io.SeekEnd)
	return err
}

// replay reads what an earlier process left.
func (j *Journal) replay() error {
	file, err := os.Open(j.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what has no end was never told to anybody
		}
		if err != nil {
			return err
		}
		j.read(bytes.TrimSuffix(line, []byte{'\n'}))
	}
}

// read takes in one line of an earlier process.
func (j *Journal) read(line []byte) {
	if len(line) < 10 {
		return
	}
	sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
	if err != nil || uint32(sum) != crc32.ChecksumIEEE(line[9:]) {
		return
	}
	kind, content := line[9], line[10:]
	switch kind {
	case putLine:
		if in, err := decodeIntent(content); err == nil && len(j.orphans) < maxIntents {
			j.orphans[in.Request] = &in
		}
	case noteLine:
		request, mark, _ := strings.Cut(string(content), " ")
		if in := j.orphans[request]; in != nil {
			in.note(mark)
		}
	case dropLine:
		delete(j.orphans, string(content))
	default:
	}
}
