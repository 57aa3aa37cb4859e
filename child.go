package main

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// child is a program of ours that must not outlive us.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startChild starts the command in a process group of its own, so that Ctrl-C
// reaches it through us alone. Where the system can, the child is ended when we
// are killed; it watches the thread that started it, which therefore waits.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended is for who asked it to
		close(c.done)
	}()
	return c, <-started
}

// stop asks the child to end, and ends it when it doesn't.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(5 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}
