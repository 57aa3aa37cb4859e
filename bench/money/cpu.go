package main

import (
	"time"

	"weir/bench/proc"
)

// postgresCPU is the time that the private Postgres has used; 0 where that can't
// be told.
func (h *house) postgresCPU() time.Duration {
	pid, err := proc.Postmaster(h.dir)
	if err != nil {
		return 0
	}
	return proc.Of(pid)
}
