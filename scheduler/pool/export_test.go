package pool

import "strings"

// ParseLoad lets tests parse a page without a server.
func ParseLoad(page string) (Load, error) { return parseLoad(strings.NewReader(page)) }
