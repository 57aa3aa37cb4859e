package extproc

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// SplitHosts reads a list of host:port, as destinations come. There is at
// least one; repeated ones count once.
func SplitHosts(list string) ([]string, error) {
	if list == "" {
		return nil, ErrNoDestination
	}
	if len(list) > maxDestinations*maxDestination {
		return nil, fmt.Errorf("%w: destinations of %d bytes", ErrTooMuch, len(list))
	}
	var hosts []string
	for each := range strings.SplitSeq(list, ",") {
		each = strings.TrimSpace(each)
		if each == "" {
			continue
		}
		if len(hosts) == maxDestinations {
			return nil, fmt.Errorf("%w: more than %d destinations", ErrTooMuch, maxDestinations)
		}
		if !isHost(each) {
			return nil, fmt.Errorf("%w: destination %q is no host:port", ErrGarbage, printable(each))
		}
		if !slices.Contains(hosts, each) {
			hosts = append(hosts, each)
		}
	}
	if len(hosts) == 0 {
		return nil, ErrNoDestination
	}
	return hosts, nil
}

func isHost(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || len(s) > maxDestination || strings.ContainsAny(host, "/@?#%\\ ") || !isPrintable(s) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
