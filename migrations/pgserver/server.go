// Package pgserver runs a private Postgres for development and tests: it finds
// or fetches the programs, makes a cluster, starts it on loopback and leaves no
// process behind, however its own process ends. Production brings its own
// Postgres.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// superuser is the role that owns the cluster.
const superuser = "postgres"

// startLimit bounds a start whose context has no deadline. Recovery after a
// crash is what takes long.
const startLimit = 2 * time.Minute

// A start is tried again when the server ends before it answers: somebody took
// the port meanwhile, or the last processes of a killed server are still going.
const (
	startAttempts = 5
	retryPause    = 300 * time.Millisecond
	pollInterval  = 20 * time.Millisecond
	pingLimit     = 5 * time.Second
	removeLimit   = 10 * time.Second
)

// Config says what to run and where. Dir and Log are required.
type Config struct {
	Dir      string            // state folder: the data, the password, the log; made 0700
	Binaries string            // folder that has initdb and postgres; empty: find them
	Cache    string            // where fetched programs are kept; empty: the user's cache folder
	Durable  bool              // false: fsync off, and a cluster that can't start is replaced by an empty one
	Settings map[string]string // further server settings, such as max_connections; never a secret
	Log      *slog.Logger
	Progress func(string) // told, in words for a person, what takes time; may be nil
}

// ErrInUse means that a living process runs a server in the folder.
var ErrInUse = errors.New("state folder is in use by another process")

// Server is a running Postgres that belongs to this process.
type Server struct {
	cluster  *cluster
	port     int
	password string
	process  *process
}

// Start brings up the cluster in c.Dir, making it if there is none, and returns
// when it answers. A server that a killed process left there is stopped first.
// The context bounds the start only. Errors: ErrInUse; one that says what to
// install when no programs are found; or the end of the server's own log.
func Start(ctx context.Context, c Config) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	// One name for the folder: by it a server of ours is known again.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, &cluster{dir: dir, lock: lock, durable: c.Durable}, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start postgres in %s: %w", dir, err), lock.Close())
	}
	return s, nil
}

func start(ctx context.Context, cl *cluster, c Config) (*Server, error) {
	tell := c.Progress
	if tell == nil {
		tell = func(string) {}
	}
	if err := cl.stopLeftover(ctx); err != nil {
		return nil, err
	}
	bin, err := find(ctx, c, cl.version(), tell)
	if err != nil {
		return nil, err
	}
	if cl.account, err = newAccount(ctx, bin, cl.dir); err != nil {
		return nil, err
	}
	cl.bin = bin
	password, err := cl.ensure(ctx, tell)
	if err != nil {
		return nil, err
	}
	s := &Server{cluster: cl, password: password}
	err = s.launch(ctx, c.Settings)
	if err != nil && !c.Durable && ctx.Err() == nil {
		c.Log.WarnContext(ctx, "cluster without fsync can't start, making a new one", "dir", cl.dir, "error", err)
		if err := os.RemoveAll(cl.data()); err != nil {
			return nil, err
		}
		if s.password, err = cl.ensure(ctx, tell); err != nil {
			return nil, err
		}
		err = s.launch(ctx, c.Settings)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// launch starts the server and waits until it answers.
func (s *Server) launch(ctx context.Context, settings map[string]string) error {
	var err error
	for range startAttempts {
		if s.port, err = s.cluster.choosePort(ctx); err != nil {
			return err
		}
		cmd, closeLog, cerr := s.cluster.command(context.WithoutCancel(ctx), "postgres", s.arguments(settings)...)
		if cerr != nil {
			return cerr
		}
		s.process, err = launch(cmd, s.cluster.lock)
		closeLog()
		if err != nil {
			return err
		}
		if err = s.await(ctx); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(err, s.end(context.WithoutCancel(ctx)))
		}
		if werr := wait(ctx, retryPause); werr != nil {
			return errors.Join(err, werr)
		}
	}
	return err
}

func (s *Server) arguments(settings map[string]string) []string {
	set := map[string]string{
		"listen_addresses": "127.0.0.1",
		"port":             strconv.Itoa(s.port),
		// No socket file: its path may be 107 bytes long at most, which a
		// project's folder is free to exceed.
		"unix_socket_directories": "",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	if !s.cluster.durable {
		maps.Copy(set, map[string]string{
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
			"wal_level": "minimal", "max_wal_senders": "0",
		})
	}
	maps.Copy(set, settings)

	args := []string{"-D", s.cluster.data()}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", name+"="+set[name])
	}
	return args
}

// await returns nil when the server answers with our password: not somebody
// else's server on the same port.
func (s *Server) await(ctx context.Context) error {
	for {
		err := s.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.done:
			return fmt.Errorf("postgres ended at once: %w\n%s", s.process.err, s.cluster.logTail())
		default:
		}
		if werr := wait(ctx, pollInterval); werr != nil {
			return fmt.Errorf("postgres doesn't answer: %w\n%s", errors.Join(err, werr), s.cluster.logTail())
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// URL is the superuser's URL of a database. It holds the password: not for logs
// or argument lists.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Secret is this cluster's own, stable over restarts: what to derive further
// passwords from.
func (s *Server) Secret() string { return s.password }

// Port is the TCP port on 127.0.0.1, the same at every start while it is free.
func (s *Server) Port() int { return s.port }

// Done is closed when the server has ended, asked or not.
func (s *Server) Done() <-chan struct{} { return s.process.done }

// Err says why the server ended: nil while it runs and after a clean end.
func (s *Server) Err() error {
	select {
	case <-s.process.done:
		return s.process.err
	default:
		return nil
	}
}

// Stop ends the server and gives the folder free. Sessions are cut and data is
// flushed; when the context ends first, the server is ended without that and
// will recover at its next start. A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	err := s.end(ctx)
	if cerr := s.cluster.lock.Close(); cerr != nil && !errors.Is(cerr, os.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}

func (s *Server) end(ctx context.Context) error {
	hard := context.WithoutCancel(ctx) // who is out of time gets harder signals, with short limits of their own
	if s.endsBy(ctx, syscall.SIGINT, time.Minute) ||
		s.endsBy(hard, syscall.SIGQUIT, 5*time.Second) ||
		s.endsBy(hard, syscall.SIGKILL, 5*time.Second) {
		return s.process.err
	}
	return errors.New("stop postgres: the process doesn't end")
}

// endsBy sends the signal and says whether the process ended within the limit.
func (s *Server) endsBy(ctx context.Context, sig syscall.Signal, limit time.Duration) bool {
	s.process.signal(sig)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-s.process.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait pauses, or returns the context's error.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
