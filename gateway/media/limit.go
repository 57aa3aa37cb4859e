package media

import (
	"fmt"
	"syscall"
)

// limitProcess bounds what this process may take of the machine, and takes away
// that it writes files or leaves its memory behind.
func limitProcess() error {
	for _, l := range []struct {
		resource int
		most     uint64
	}{
		{syscall.RLIMIT_DATA, extractMemory},
		{syscall.RLIMIT_CPU, extractCPU},
		{syscall.RLIMIT_FSIZE, 0},
		{syscall.RLIMIT_CORE, 0},
	} {
		limit := syscall.Rlimit{Cur: l.most, Max: l.most}
		if err := syscall.Setrlimit(l.resource, &limit); err != nil {
			return fmt.Errorf("limit %d of the process: %w", l.resource, err)
		}
	}
	return nil
}
