package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func config(dir string) Config {
	return Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}
}

func mustStart(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	// A server that was killed on purpose reports it; here counts that it is gone.
	_ = s.Stop(ctx)
	eventually(t, "server "+strconv.Itoa(s.process.pid)+" to be gone", func() bool { return gone(t, s.process.pid) })
}

// session is a connection that lasts as long as the test, or the server.
func session(t *testing.T, s *Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn := session(t, s)
	var answer string
	if err := conn.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

// gone holds when no such process runs. A zombie has no command line.
func gone(t *testing.T, pid int) bool {
	t.Helper()
	return commandLine(context.WithoutCancel(t.Context()), pid) == ""
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}

func TestRestartKeepsDataPortAndPassword(t *testing.T) {
	t.Parallel()
	c := config(t.TempDir())
	c.Durable = true
	first := mustStart(t, c)
	// Stopping doesn't wait for this session to close.
	if _, err := session(t, first).Exec(t.Context(), `CREATE TABLE kept AS SELECT 'yes' AS answer`); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-first.Done()
	if err := errors.Join(first.Err(), first.Stop(t.Context())); err != nil {
		t.Errorf("after a clean end and a second Stop: %v", err)
	}

	second := mustStart(t, c)
	if got := query(t, second, `SELECT answer FROM kept`); got != "yes" {
		t.Errorf("answer = %q", got)
	}
	if first.URL("x") != second.URL("x") {
		t.Error("the URL changed")
	}
}

func TestFolderBelongsToOneServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustStart(t, config(dir))
	if _, err := Start(t.Context(), config(dir)); !errors.Is(err, ErrInUse) {
		t.Errorf("second Start: %v, want ErrInUse", err)
	}
}

func TestFolderStaysLockedWhenTheServerIsForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pid := func() int {
		s, err := Start(t.Context(), config(dir))
		if err != nil {
			t.Fatal(err)
		}
		return s.process.pid // and nothing else of it
	}()
	for range 3 {
		runtime.GC() // finalizers run a round later
	}
	_, err := Start(t.Context(), config(dir))
	if !errors.Is(err, ErrInUse) {
		t.Errorf("second Start: %v, want ErrInUse", err)
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server to end", func() bool { return gone(t, pid) })
}

func TestNothingButThePasswordOpensIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	s := mustStart(t, config(dir))

	for _, user := range []string{"postgres:wrong@", "postgres@"} {
		url := fmt.Sprintf("postgres://%s127.0.0.1:%d/postgres?sslmode=disable", user, s.Port())
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			_ = conn.Close(t.Context())
			t.Errorf("let in as %q", user)
		}
	}
	if line := commandLine(t.Context(), s.process.pid); !strings.Contains(line, "postgres") || strings.Contains(line, s.Secret()) {
		t.Errorf("command line: %s", line)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "password"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(path), got, want)
		}
	}
	if got := query(t, s, `SHOW listen_addresses`); got != "127.0.0.1" {
		t.Errorf("listens on %q", got)
	}
}

func TestPathMayBeLongerThanASocketsPath(t *testing.T) {
	t.Parallel()
	s := mustStart(t, config(filepath.Join(t.TempDir(), strings.Repeat("long ", 30))))
	if got := query(t, s, `SHOW fsync`); got != "off" {
		t.Errorf("fsync = %q", got)
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	c := config(t.TempDir())
	c.Settings = map[string]string{"max_connections": "17"}
	if got := query(t, mustStart(t, c), `SHOW max_connections`); got != "17" {
		t.Errorf("max_connections = %q", got)
	}
}

func TestKilledServerIsReportedAndRecovers(t *testing.T) {
	t.Parallel()
	c := config(t.TempDir())
	c.Durable = true
	first := mustStart(t, c)
	if _, err := session(t, first).Exec(t.Context(), `CREATE TABLE kept AS SELECT 'yes' AS answer`); err != nil {
		t.Fatal(err)
	}
	first.process.signal(syscall.SIGKILL)
	<-first.Done()
	if first.Err() == nil {
		t.Error("a killed server reports no error")
	}
	stop(t, first)
	if got := query(t, mustStart(t, c), `SELECT answer || ', fsync ' || current_setting('fsync') FROM kept`); got != "yes, fsync on" {
		t.Errorf("after recovery: %q", got)
	}
}

func TestStaleProcessNumberIsNotTakenForAServer(t *testing.T) {
	t.Parallel()
	c := config(t.TempDir())
	stop(t, mustStart(t, c))

	stranger := exec.CommandContext(t.Context(), "sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	stale := fmt.Sprintf("%d\n%s\n", stranger.Process.Pid, filepath.Join(c.Dir, "data"))
	if err := os.WriteFile(filepath.Join(c.Dir, "data", "postmaster.pid"), []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	mustStart(t, c)
	if gone(t, stranger.Process.Pid) {
		t.Error("another program was ended")
	}
	_ = stranger.Process.Kill()
	_ = stranger.Wait()
}

func TestBrokenClusterIsReplacedOnlyWhereDataMayBeLost(t *testing.T) {
	t.Parallel()
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable %v", durable), func(t *testing.T) {
			t.Parallel()
			c := config(t.TempDir())
			c.Durable = durable
			stop(t, mustStart(t, c))
			control := filepath.Join(c.Dir, "data", "global", "pg_control")
			if err := os.Truncate(control, 0); err != nil {
				t.Fatal(err)
			}
			s, err := Start(t.Context(), c)
			if durable {
				if err == nil || !strings.Contains(err.Error(), "pg_control") {
					t.Errorf("error doesn't say why: %v", err)
				}
				if info, err := os.Stat(control); err != nil || info.Size() != 0 {
					t.Error("the data was touched")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			stop(t, s)
		})
	}
}

func TestDataOfAnotherVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := config(t.TempDir())
	data := filepath.Join(c.Dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "Postgres 99") || !strings.Contains(err.Error(), "install it: ") {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err != nil {
		t.Error(err)
	}
}

// helper runs this test binary again, as a process to be killed, and returns
// when it has said a line.
func helper(t *testing.T, mode, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelper$")
	cmd.Env = append(os.Environ(), "PGSERVER_HELPER="+mode, "PGSERVER_DIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("helper said %q: %v", line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// kill gives the process no chance to clean up.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // reports the kill
}

// TestHelper is the process that other tests kill.
func TestHelper(t *testing.T) { //nolint:paralleltest // not a test in its own right
	dir := os.Getenv("PGSERVER_DIR")
	switch os.Getenv("PGSERVER_HELPER") {
	case "":
		t.Skip("runs only as a helper of other tests")
	case "server":
		s, err := Start(t.Context(), config(dir))
		if err != nil {
			t.Fatal(err)
		}
		query(t, s, `SELECT 'ready'`)
		fmt.Println(s.process.pid)
		<-s.Done()
	case "initdb":
		c := config(dir)
		c.Progress = func(what string) { fmt.Println(what) }
		if _, err := Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		t.Fatal("initdb was over before the kill")
	case "watch":
		child := exec.CommandContext(t.Context(), "sleep", "60")
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		release, err := watch(child.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		fmt.Println(child.Process.Pid)
		_ = child.Wait()
	}
}

func TestKilledOwnerLeavesNoServer(t *testing.T) {
	t.Parallel()
	cmd, line := helper(t, "server", t.TempDir())
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if gone(t, pid) {
		t.Fatal("the server doesn't run")
	}
	kill(t, cmd)
	eventually(t, "the server to end with its owner", func() bool { return gone(t, pid) })
}

func TestStartRightAfterTheOwnerWasKilledWaitsForItsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, line := helper(t, "server", dir)
	kill(t, cmd)
	s := mustStart(t, config(dir))
	if strconv.Itoa(s.process.pid) == line {
		t.Error("the old server was taken for the new one")
	}
	if got := query(t, s, `SELECT 'answers'`); got != "answers" {
		t.Error(got)
	}
}

func TestLeftServerIsStoppedFirst(t *testing.T) {
	t.Parallel()
	// A server that outlived its owner, as where the kernel doesn't tell it.
	c := config(t.TempDir())
	old := mustStart(t, c)
	if err := old.cluster.lock.Close(); err != nil {
		t.Fatal(err)
	}
	mustStart(t, c)
	<-old.Done()
}

func TestKillDuringInitdbIsSurvived(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, line := helper(t, "initdb", dir)
	if !strings.Contains(line, "making a database cluster") {
		t.Fatalf("helper said %q", line)
	}
	half := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, "init-*", "PG_VERSION"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	eventually(t, "initdb to be at work", func() bool { return len(half()) == 1 })
	kill(t, cmd)
	if _, err := os.Stat(filepath.Join(dir, "data")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("half a cluster has the name of a whole one: %v", err)
	}
	s := mustStart(t, config(dir))
	if got := query(t, s, `SELECT 'answers'`); got != "answers" {
		t.Error(got)
	}
	if left := half(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestWatchEndsAProcessWhoseOwnerWasKilled(t *testing.T) {
	t.Parallel()
	cmd, line := helper(t, "watch", "")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if gone(t, pid) {
		t.Fatal("the process doesn't run")
	}
	kill(t, cmd)
	eventually(t, "the process to end with its owner", func() bool { return gone(t, pid) })
}

func TestReleasedWatchEndsNothing(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release, err := watch(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if gone(t, cmd.Process.Pid) {
		t.Error("release ended the process")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
