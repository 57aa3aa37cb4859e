package pgserver

import (
	"os/exec"
	"strconv"
	"syscall"
)

// watch ends the process with that pid when ours ends, in whatever way: a shell
// waits for the end of a pipe whose other side only we hold. It serves where
// the kernel offers nothing of the kind. release calls it off.
func watch(pid int) (release func(), err error) {
	const script = `read -r _; kill -INT "$0"`
	cmd := exec.Command("/bin/sh", "-c", script, strconv.Itoa(pid)) //nolint:gosec,noctx // a number; and it outlives every context
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	held, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		// Killed first: the end of the pipe would make it act.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = held.Close()
	}, nil
}
