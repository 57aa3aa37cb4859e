package pool

import (
	"io"
	"strings"
	"time"

	"weir/scheduler"
)

// ParseLoad lets tests parse a page without a server.
func ParseLoad(page, engine string) (scheduler.Load, error) {
	load, _, err := new(reader).read(strings.NewReader(page), engine, 1)
	return load, err
}

// ParseRanks is ParseLoad for an endpoint of so many ranks.
func ParseRanks(page, engine string, ranks int) (whole scheduler.Load, each []scheduler.Load, err error) {
	return new(reader).read(strings.NewReader(page), engine, ranks)
}

// LoadReader reads page after page as the watch of an endpoint does.
func LoadReader(engine string) func(io.Reader) (scheduler.Load, error) {
	var r reader
	return func(page io.Reader) (scheduler.Load, error) {
		load, _, err := r.read(page, engine, 1)
		return load, err
	}
}

// ParseFile lets tests parse a file of endpoints without one.
func ParseFile(text string) ([]Found, error) {
	found, _, err := File{}.parse([]byte(text))
	return found, err
}

// Want lets tests decide on a signal of their own.
func Want(s Scaling, role string, g Signal) (int, string) { return s.withDefaults().want(role, g) }

// Calm lets tests settle what they want.
type Calm struct{ calm }

// Settle is settle.
func (c *Calm) Settle(n int, now time.Time, downAfter time.Duration) int {
	return c.settle(n, now, downAfter)
}

// Len is how much is remembered.
func (c *Calm) Len() int { return len(c.peaks) }
