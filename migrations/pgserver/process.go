package pgserver

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a program that we started and wait for.
type process struct {
	pid  int
	done chan struct{}
	err  error // of the end; read after done
}

// launch starts the program. One goroutine, and with it one thread, lives as
// long as the program: Linux signals a child when the *thread* that started it
// ends, and the runtime is free to end idle threads. The same goroutine keeps
// the folder's lock: a file that nobody refers to any more is closed, and a
// caller may drop the Server and go on using its URL.
func launch(cmd *exec.Cmd, lock *os.File) (*process, error) {
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		release, err := guard(cmd.Process.Pid)
		if err != nil {
			err = errors.Join(err, cmd.Process.Kill(), cmd.Wait())
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		runtime.KeepAlive(lock)
		release()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// signal reaches the program, unless it has ended: its pid may be another's
// then.
func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(p.pid, s) // it may end at this moment, which is what we want
	}
}
