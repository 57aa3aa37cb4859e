package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	readyLimit = 60 * time.Second
	stopLimit  = 20 * time.Second
)

// child is a program that we started and end.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string // file with all that it said
	done chan struct{}
	err  error // why it ended; set before done is closed
}

// startChild runs a program with its output in a file of the folder. The
// program sees our environment and, over it, env. Its standard input stays
// open while we live.
func startChild(dir, name string, env []string, program string, args ...string) (*child, error) {
	c := &child{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c.cmd = exec.Command(program, args...) //nolint:noctx // our own programs; stop ends them in order
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		_ = stdin.Close()
		close(c.done)
	}()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// stop ends the program, gently first, and waits for it.
func (c *child) stop() {
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = c.cmd.Process.Signal(signal) // an error means that it has ended
		select {
		case <-c.done:
			return
		case <-time.After(stopLimit):
		}
	}
}

// ready waits until probe succeeds.
func (c *child) ready(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s ended: %w\n%s", c.name, errors.Join(c.err), tail(c.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", c.name, err, tail(c.log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail is the end of a log, for an error message.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text[max(len(text)-2000, 0):])
}

// answers probes an address for a 200.
func answers(url string) func(context.Context) error {
	return (&client{http: http.DefaultClient}).answers(url)
}

func (c *client) answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := c.http.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
			return fmt.Errorf("%s: %s %s", url, resp.Status, text)
		}
		return nil
	}
}

// freePort returns a port on loopback that nobody listens on now.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, errors.Join(err, l.Close())
	}
	n, err := strconv.Atoi(port)
	return n, errors.Join(err, l.Close())
}

// startSelf runs one of this program's own servers as a process of its own, and
// waits until it answers.
func (b *bench) startSelf(ctx context.Context, name, addr string, env []string, args ...string) (*child, error) {
	c, err := b.launchSelf(name, name, addr, env, args...)
	if err != nil {
		return nil, err
	}
	return c, c.ready(ctx, answers("http://"+addr+"/health"))
}

func (b *bench) launchSelf(name, role, addr string, env []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c, err := startChild(b.dir, name, env, self, append([]string{role, addr}, args...)...)
	if err != nil {
		return nil, err
	}
	b.children = append(b.children, c)
	return c, nil
}

// serveRole is the life of such a process: it ends with its parent. It speaks
// TLS where files of a certificate and a key are given.
func serveRole(addr string, h http.Handler, certificate ...string) error {
	srv := &http.Server{Addr: addr, Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	serve := srv.ListenAndServe
	if len(certificate) == 2 {
		serve = func() error { return srv.ListenAndServeTLS(certificate[0], certificate[1]) }
	}
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
