// Package eventlog keeps the events of running background responses for those
// who come back to a stream. What is in it may be lost at any time: the
// finished response is in Postgres.
//
// A log is a list of entries whose events are numbered without a gap: a writer
// that was replaced, and doesn't know it yet, can't write behind its successor's
// back. Numbers only grow, also where all that a log has is replaced. What an entry holds was sealed before it came
// here.
package eventlog

import (
	"errors"
	"time"
)

var (
	// ErrStale means that the log has an event of the first one's number, or a later one.
	ErrStale = errors.New("eventlog: another wrote meanwhile")
	// ErrLost means that the log is gone that should have the events before: it
	// would have a hole.
	ErrLost = errors.New("eventlog: the earlier events are gone")
	// ErrFull means that the log has as much as one may have, or that all of
	// them together do.
	ErrFull = errors.New("eventlog: no room")
)

// Entry is what was written at once.
type Entry struct {
	Last int // number of its last event, from 0
	Box  []byte
}

// Config bounds logs. Zero takes the default.
type Config struct {
	MaxBytes int           // of one log; 16 MiB
	MaxTotal int           // bytes of all logs in this process's memory; 256 MiB
	Life     time.Duration // of a log to which nobody writes; 1 h
	After    time.Duration // life of a log after its end; 10 min
	SeatLife time.Duration // of a reader who isn't heard of; 30 s
}

func (c Config) withDefaults() Config {
	if c.MaxBytes <= 0 {
		c.MaxBytes = 16 << 20
	}
	if c.MaxTotal <= 0 {
		c.MaxTotal = 256 << 20
	}
	if c.Life <= 0 {
		c.Life = time.Hour
	}
	if c.After <= 0 {
		c.After = 10 * time.Minute
	}
	if c.SeatLife <= 0 {
		c.SeatLife = 30 * time.Second
	}
	return c
}

// overhead is what an entry costs besides its bytes.
const overhead = 64
