package main

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startRedis runs a private redis-server on the port until the test ends.
func startRedis(t *testing.T, port string) *exec.Cmd {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed (make test installs it)")
	}
	cmd := exec.CommandContext(t.Context(), binary, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

type readiness struct {
	Status string            `json:"status"`
	Checks map[string]string `json:"checks"`
}

// readinessIs waits until a replica says of itself what is wanted.
func readinessIs(t *testing.T, ops, status string) {
	t.Helper()
	var last readiness
	eventually(t, 30*time.Second, func() string {
		last = readiness{}
		getJSON(t, ops+"/readyz", "", &last)
		if last.Status != status {
			return fmt.Sprintf("%+v, want %s", last, status)
		}
		return ""
	})
	if redis := last.Checks["redis"]; (redis == "ok") != (status == "ready") {
		t.Errorf("%s, but redis: %s", status, redis)
	}
}

// A replica serves without its Redis, says so, and shares its limits again as
// soon as Redis is back.
func TestReplicasShareLimitsWhileRedisIsThere(t *testing.T) {
	t.Parallel()
	in := install(t)
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	settings := []string{"WEIR_REDIS_URL=redis://127.0.0.1:" + port}
	first, _ := in.serve(t, settings...)
	firstOps := in.ops
	second, _ := in.serve(t, settings...)
	ops := []string{firstOps, in.ops}

	for _, o := range ops { // they have counted each other
		readinessIs(t, o, "degraded")
		eventually(t, 30*time.Second, func() string {
			var r readiness
			getJSON(t, o+"/readyz", "", &r)
			if !strings.Contains(r.Checks["redis"], "divided by 2") || !strings.Contains(r.Checks["pools"], "divided by 2") {
				return fmt.Sprintf("%+v, want two replicas", r)
			}
			return ""
		})
	}
	if n := in.admitted(t, 8, first); n != 4 {
		t.Errorf("without Redis one of two replicas admitted %d of 8 a minute, want its half", n)
	}

	redis := startRedis(t, port)
	for _, o := range ops {
		readinessIs(t, o, "ready")
	}
	if n := in.admitted(t, 8, first, second); n != 8 {
		t.Errorf("with Redis two replicas admitted %d of 8 a minute", n)
	}

	_ = redis.Process.Kill()
	_, _ = redis.Process.Wait()
	if n := in.admitted(t, 8, second); n != 4 {
		t.Errorf("after Redis went away, one of two replicas admitted %d of 8 a minute", n)
	}
	readinessIs(t, ops[1], "degraded")
}

// admitted sends requests of a new key with a limit of so many a minute, in
// turn to the replicas, until one is refused, and returns how many were not.
func (in *installation) admitted(t *testing.T, limit int, replicas ...string) (n int) {
	t.Helper()
	key := lastWord(runWeir(t, in.dir, in.environment, "key", "create", "--tenant", in.tenant, "--rpm", fmt.Sprint(limit), "--quiet"))
	for ; n < 3*limit; n++ {
		res, err := post(t.Context(), replicas[n%len(replicas)]+"/v1/chat/completions", key, chatBody(1, false))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode == http.StatusTooManyRequests {
			break
		}
		if res.StatusCode != http.StatusOK {
			t.Fatalf("status %s (%s)", res.Status, strings.Join(replicas, ", "))
		}
	}
	return n
}
