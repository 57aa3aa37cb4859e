package billing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// ErrSpoolFull is returned by Append when the spool has reached its bound.
var ErrSpoolFull = errors.New("billing: spool is full")

// errSpoolClosed is returned by every use after Close.
var errSpoolClosed = errors.New("billing: spool is closed")

// segmentBytes is when a new segment is begun: replay reads one at a time.
const segmentBytes = 4 << 20

const (
	segmentSuffix = ".spool"
	damagedSuffix = ".damaged"
)

// Spool keeps receipts on disk while Postgres can't. What Append accepted
// survives a crash of the process and of the machine. It is safe for concurrent
// use; one process owns its folder.
//
// The folder holds segments, which are appended to in the order of their names.
// A process never continues an old segment: a torn tail stays at the end of one.
type Spool struct {
	dir  string
	max  int64
	lock *os.File

	mu       sync.Mutex
	closed   bool
	segments []segment // oldest first; the last one is written to while file is set
	file     *os.File
	next     uint64
}

type segment struct {
	path string
	size int64
}

// OpenSpool opens the folder, and makes it where it is missing. maxBytes bounds
// what it may hold; 0 means 256 MiB. It fails when another process has the folder.
func OpenSpool(dir string, maxBytes int64) (*Spool, error) {
	if maxBytes <= 0 {
		maxBytes = 256 << 20
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	s := &Spool{dir: dir, max: maxBytes, lock: lock}
	if err := s.scan(); err != nil {
		return nil, errors.Join(fmt.Errorf("open spool: %w", err), lock.Close())
	}
	return s, nil
}

// lockFolder keeps a second process out: it would delete segments that this one
// still writes. The lock ends with the process, however it ends.
func lockFolder(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("open spool: %s is in use by another process: %w", dir, err), lock.Close())
	}
	return lock, nil
}

// scan finds the segments that an earlier process left.
func (s *Spool) scan() error {
	entries, err := os.ReadDir(s.dir) // sorted by name, which is by age
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok {
			continue
		}
		var n uint64
		if _, err := fmt.Sscanf(name, "%016x", &n); err != nil {
			return fmt.Errorf("unexpected file %s: %w", e.Name(), err)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		s.segments = append(s.segments, segment{path: filepath.Join(s.dir, e.Name()), size: info.Size()})
		s.next = n + 1
	}
	return nil
}

// Bytes is how much waits to be replayed.
func (s *Spool) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes()
}

func (s *Spool) bytes() (n int64) {
	for _, seg := range s.segments {
		n += seg.size
	}
	return n
}

// Append stores all the receipts with one fsync. After an error none of them is
// promised, though some may yet be replayed.
func (s *Spool) Append(receipts []Receipt) error {
	var buf []byte
	for i := range receipts {
		payload, err := json.Marshal(&receipts[i])
		if err != nil {
			return fmt.Errorf("spool %s: %w", receipts[i].RequestID, err)
		}
		buf = appendFrame(buf, payload)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSpoolClosed
	}
	if s.bytes()+int64(len(buf)) > s.max {
		return ErrSpoolFull
	}
	if err := s.write(buf); err != nil {
		// What lies behind a failed write is unknown: leave this segment.
		return errors.Join(fmt.Errorf("spool: %w", err), s.rotate())
	}
	return nil
}

// write appends to the current segment. Callers hold mu.
func (s *Spool) write(buf []byte) error {
	if s.file != nil && s.segments[len(s.segments)-1].size >= segmentBytes {
		if err := s.rotate(); err != nil {
			return err
		}
	}
	if s.file == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	n, err := s.file.Write(buf)
	s.segments[len(s.segments)-1].size += int64(n)
	if err != nil {
		return err
	}
	return s.file.Sync()
}

// begin creates a segment. Callers hold mu.
func (s *Spool) begin() error {
	path := filepath.Join(s.dir, fmt.Sprintf("%016x%s", s.next, segmentSuffix))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.next++
	s.file = file
	s.segments = append(s.segments, segment{path: path})
	return syncFolder(s.dir)
}

// rotate ends the current segment, if there is one. Callers hold mu.
func (s *Spool) rotate() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}

// syncFolder makes the creation of a file in dir durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Replay hands over what is spooled, oldest first and up to batch receipts at a
// time, and forgets a segment when all of it was taken. It ends at the first
// error of store, and what was not forgotten comes again: store is idempotent.
// lost counts receipts that can't be read any more; their segment is kept,
// renamed to *.damaged. Appends may go on meanwhile, replays may not overlap.
func (s *Spool) Replay(ctx context.Context, batch int, store func(context.Context, []Receipt) error) (lost int, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return lost, err
		}
		seg, ok, err := s.oldest()
		if err != nil || !ok {
			return lost, err
		}
		receipts, bad, err := readSegment(seg.path)
		if err != nil {
			return lost, fmt.Errorf("replay spool: %w", err)
		}
		for chunk := range slices.Chunk(receipts, batch) {
			if err := store(ctx, chunk); err != nil {
				return lost, err
			}
		}
		lost += bad
		if err := s.forget(seg, bad > 0); err != nil {
			return lost, fmt.Errorf("replay spool: %w", err)
		}
	}
}

// oldest is the next segment to replay, ended so that nobody appends to it.
func (s *Spool) oldest() (seg segment, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return segment{}, false, errSpoolClosed
	}
	if len(s.segments) == 0 {
		return segment{}, false, nil
	}
	if len(s.segments) == 1 {
		err = s.rotate()
	}
	return s.segments[0], true, err
}

func (s *Spool) forget(seg segment, keep bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if keep {
		err = os.Rename(seg.path, seg.path+damagedSuffix)
	} else {
		err = os.Remove(seg.path)
	}
	if err != nil {
		return err
	}
	s.segments = s.segments[1:]
	return nil
}

// Close gives the folder up. What is spooled stays there.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.rotate(), s.lock.Close())
}
