//go:build !linux

package pgserver

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

const namespaces = false

// attributes puts the program into a group of its own, so that Ctrl-C reaches
// us and not it.
func (a account) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: a.other}
}

// guard ends the program when we are killed.
func guard(pid int) (release func(), err error) { return watch(pid) }

// commandLine is the program and its arguments; empty when there is no such
// process.
func commandLine(ctx context.Context, pid int) string {
	out, err := exec.CommandContext(ctx, "ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output() //nolint:gosec // a number
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
