package pool

import (
	"strings"

	"weir/scheduler"
)

// ParseLoad lets tests parse a page without a server.
func ParseLoad(page, engine string) (scheduler.Load, error) {
	return new(reader).read(strings.NewReader(page), engine)
}
