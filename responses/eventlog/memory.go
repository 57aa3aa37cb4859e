package eventlog

import (
	"context"
	"sort"
	"sync"
	"time"
)

// Memory keeps logs in this process: for one replica alone. It is safe for
// concurrent use.
type Memory struct {
	cfg Config
	now func() time.Time

	mu    sync.Mutex
	logs  map[string]*memoryLog
	total int
}

type memoryLog struct {
	entries []Entry
	bytes   int
	until   time.Time
	ended   bool
	seats   map[string]time.Time
	grown   chan struct{} // closed when something was written
}

// NewMemory makes an empty one.
func NewMemory(cfg Config, now func() time.Time) *Memory {
	return &Memory{cfg: cfg.withDefaults(), now: now, logs: map[string]*memoryLog{}}
}

// log finds or makes one; it holds mu.
func (m *Memory) log(key string) *memoryLog {
	l := m.logs[key]
	if l == nil {
		l = &memoryLog{seats: map[string]time.Time{}, grown: make(chan struct{}), until: m.now().Add(m.cfg.Life)}
		m.logs[key] = l
	}
	return l
}

// Append writes an entry whose first event has the number. The error is
// ErrStale, ErrLost or ErrFull. End says that it is the last entry: from then on
// the log lives for Config.After.
func (m *Memory) Append(_ context.Context, key string, first int, e Entry, end bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	l := m.log(key)
	size := len(e.Box) + overhead
	switch last := l.last(); {
	case l.ended, last >= first:
		return ErrStale
	case last+1 < first:
		return ErrLost
	case l.bytes+size > m.cfg.MaxBytes, m.total+size > m.cfg.MaxTotal:
		return ErrFull
	}
	l.ended = end
	m.grow(l, e, size)
	if end {
		l.until = m.now().Add(m.cfg.After)
	}
	return nil
}

// Restart puts an entry in the place of all that a log has: its events follow
// those in number, the first of them as it says, and count alone from now on.
// The error is ErrStale or ErrLost.
func (m *Memory) Restart(_ context.Context, key string, first int, e Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	l := m.log(key)
	switch last := l.last(); {
	case l.ended, last >= first:
		return ErrStale
	case last+1 < first:
		return ErrLost
	}
	m.total -= l.bytes
	l.entries, l.bytes = nil, 0
	m.grow(l, e, len(e.Box)+overhead)
	return nil
}

// grow adds an entry and wakes those who wait for one; it holds mu.
func (m *Memory) grow(l *memoryLog, e Entry, size int) {
	l.entries = append(l.entries, Entry{Last: e.Last, Box: append([]byte(nil), e.Box...)})
	l.bytes += size
	m.total += size
	l.until = m.now().Add(m.cfg.Life)
	close(l.grown)
	l.grown = make(chan struct{})
}

// last is the number of the last event; -1 where there is none.
func (l *memoryLog) last() int {
	if n := len(l.entries); n > 0 {
		return l.entries[n-1].Last
	}
	return -1
}

// Read returns the entries that have events after the number, oldest first. It
// waits for some, for so long at most; none is no error.
func (m *Memory) Read(ctx context.Context, key string, after int, wait time.Duration) ([]Entry, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		found, grown := m.look(key, after)
		if len(found) > 0 {
			return found, nil
		}
		select {
		case <-grown:
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *Memory) look(key string, after int) (found []Entry, grown <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	l := m.log(key)
	at := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Last > after })
	return append(found, l.entries[at:]...), l.grown
}

// Drop forgets a log.
func (m *Memory) Drop(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(key)
	return nil
}

func (m *Memory) drop(key string) {
	if l := m.logs[key]; l != nil {
		m.total -= l.bytes
		delete(m.logs, key)
		close(l.grown)
	}
}

// Hold takes or keeps a reader's seat at a log, of which there are only so
// many. A seat that isn't kept is free again after Config.SeatLife.
func (m *Memory) Hold(_ context.Context, key, seat string, most int) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	l, now := m.log(key), m.now()
	for other, until := range l.seats {
		if now.After(until) {
			delete(l.seats, other)
		}
	}
	if _, has := l.seats[seat]; !has && len(l.seats) >= most {
		return false, nil
	}
	l.seats[seat] = now.Add(m.cfg.SeatLife)
	return true, nil
}

// Leave gives a seat back.
func (m *Memory) Leave(_ context.Context, key, seat string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.logs[key]; l != nil {
		delete(l.seats, seat)
	}
	return nil
}

// expire holds mu. Logs are few: one for each background stream.
func (m *Memory) expire() {
	now := m.now()
	for key, l := range m.logs {
		if now.After(l.until) {
			m.drop(key)
		}
	}
}
