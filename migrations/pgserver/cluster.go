package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cluster is a state folder and the programs that work on it.
type cluster struct {
	dir     string
	lock    *os.File // held while a program of ours runs on the folder
	bin     string
	durable bool
	account account
}

func (c *cluster) data() string         { return filepath.Join(c.dir, "data") }
func (c *cluster) passwordFile() string { return filepath.Join(c.dir, "password") }
func (c *cluster) portFile() string     { return filepath.Join(c.dir, "port") }
func (c *cluster) logFile() string      { return filepath.Join(c.dir, "postgres.log") }
func (c *cluster) pidFile() string      { return filepath.Join(c.data(), "postmaster.pid") }

// version is the major version that the data needs; 0 when there is none yet.
func (c *cluster) version() int {
	text, err := os.ReadFile(filepath.Join(c.data(), "PG_VERSION"))
	if err != nil {
		return 0
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return v
}

// ensure makes the cluster if there is none and returns its password.
func (c *cluster) ensure(ctx context.Context, tell func(string)) (string, error) {
	password, err := c.ensurePassword()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(c.data()); err == nil {
		return password, c.account.own(c.dir)
	}
	tell("making a database cluster in " + c.dir)

	// initdb isn't atomic and its traces confuse a later start: it works aside,
	// and only a whole cluster gets the name.
	if err := c.removeHalves(ctx); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(c.dir, "init-")
	if err != nil {
		return "", err
	}
	if err := c.account.own(c.dir); err != nil {
		return "", err
	}
	args := []string{
		"-D", fresh, "-U", superuser, "--auth=scram-sha-256", "--pwfile=" + c.passwordFile(),
		"--encoding=UTF8", "--locale=C", "--no-instructions",
	}
	if !c.durable {
		args = append(args, "--no-sync")
	}
	if err := c.run(ctx, "initdb", args...); err != nil {
		return "", errors.Join(err, os.RemoveAll(fresh))
	}
	if err := os.Rename(fresh, c.data()); err != nil {
		return "", err
	}
	return password, c.sync()
}

// removeHalves removes what a killed initdb left. It may still be ending, and
// writing while we remove.
func (c *cluster) removeHalves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	halves, err := filepath.Glob(filepath.Join(c.dir, "init-*"))
	if err != nil {
		return err
	}
	for _, half := range halves {
		for err := os.RemoveAll(half); err != nil; err = os.RemoveAll(half) {
			if werr := wait(ctx, pollInterval); werr != nil {
				return errors.Join(err, werr)
			}
		}
	}
	return nil
}

// ensurePassword writes the password to its final name in one step: the cluster
// that knows it may outlive us.
func (c *cluster) ensurePassword() (string, error) {
	text, err := os.ReadFile(c.passwordFile())
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	password := rand.Text()
	return password, writeWhole(c.passwordFile(), password+"\n")
}

// sync makes the new names durable.
func (c *cluster) sync() error {
	if !c.durable {
		return nil
	}
	dir, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// choosePort returns the port of the last start if it is free, else any.
func (c *cluster) choosePort(ctx context.Context) (int, error) {
	var listen net.ListenConfig
	text, err := os.ReadFile(c.portFile())
	if err == nil {
		if l, err := listen.Listen(ctx, "tcp4", "127.0.0.1:"+strings.TrimSpace(string(text))); err == nil {
			return portOf(l), l.Close()
		}
	}
	l, err := listen.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := portOf(l)
	return port, errors.Join(l.Close(), writeWhole(c.portFile(), strconv.Itoa(port)+"\n"))
}

func portOf(l net.Listener) int {
	return l.Addr().(*net.TCPAddr).Port
}

// command prepares one of Postgres' programs, writing to the log. The caller
// closes its own handle of the log once the program runs.
func (c *cluster) command(ctx context.Context, name string, args ...string) (*exec.Cmd, func(), error) {
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	cmd := c.account.command(ctx, filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, func() { _ = log.Close() }, nil
}

// run runs one of Postgres' programs to its end.
func (c *cluster) run(ctx context.Context, name string, args ...string) error {
	cmd, closeLog, err := c.command(ctx, name, args...)
	if err != nil {
		return err
	}
	p, err := launch(cmd, c.lock)
	closeLog()
	if err != nil {
		return err
	}
	if <-p.done; p.err != nil {
		return fmt.Errorf("%s: %w\n%s", name, p.err, c.logTail())
	}
	return nil
}

// logTail is the end of the server's log, for an error that a person reads.
func (c *cluster) logTail() string {
	const most = 2 << 10
	f, err := os.Open(c.logFile())
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	tail, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(tail))
}

// stopLeftover ends the server that a killed process left on this data. We hold
// the folder's lock, so nobody else can want it.
func (c *cluster) stopLeftover(ctx context.Context) error {
	text, err := os.ReadFile(c.pidFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	// The pid may have gone to another program since, after a reboot for one.
	if err != nil || pid <= 1 || !c.serves(ctx, pid) {
		return removeIfExists(c.pidFile())
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop the server left by an earlier process: %w", err)
	}
	for c.serves(ctx, pid) {
		if err := wait(ctx, pollInterval); err != nil {
			return fmt.Errorf("process %d of an earlier start doesn't end: %w", pid, err)
		}
	}
	return removeIfExists(c.pidFile())
}

// serves reports whether the process is a server on this data.
func (c *cluster) serves(ctx context.Context, pid int) bool {
	return strings.Contains(commandLine(ctx, pid)+" ", " -D "+c.data()+" ")
}

// lockDir takes the folder for this process; the kernel gives it free when the
// process ends, in whatever way.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), f.Close())
	}
	return f, nil
}

// writeWhole replaces a small private file: readers see all of it or none.
func writeWhole(path, text string) error {
	aside := path + ".new"
	if err := os.WriteFile(aside, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
