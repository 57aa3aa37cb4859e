package main

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
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

// A quota for ten and a hundred callers at once, spread over three replicas:
// whoever's quota it is, exactly ten get in.
func TestThreeReplicasAdmitExactlyTheQuota(t *testing.T) {
	t.Parallel()
	in := install(t)
	_, port, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	startRedis(t, port)
	var replicas []string
	for range 3 {
		url, _ := in.serve(t, "WEIR_REDIS_URL=redis://127.0.0.1:"+port)
		replicas = append(replicas, url)
	}
	weir := func(args ...string) string { return runWeir(t, in.dir, in.environment, args...) }
	project := func(name string) string {
		return strings.Fields(weir("project", "create", "--tenant", in.tenant, name))[0]
	}
	key := func(project string, further ...string) string {
		return lastWord(weir(append([]string{"key", "create", "--tenant", in.tenant, "--project", project, "--quiet"}, further...)...))
	}
	own, limited, modelled := project("keys"), project("limited"), project("models")
	weir("project", "limit", "--tenant", in.tenant, limited, "--rpm", "10")
	for _, tt := range []struct { // not parallel: the last limits the tenant
		name string
		keys []string
	}{
		{"a key's", []string{key(own, "--rpm", "10")}},
		{"a project's, by two keys", []string{key(limited), key(limited)}},
		{"a tenant's for the model, by two keys", []string{key(modelled), key(own)}},
	} {
		if strings.Contains(tt.name, "model") {
			weir("tenant", "limit-model", in.tenant, "sim-chat", "--rpm", "10")
		}
		began := time.Now()
		n := in.rush(t, 100, replicas, tt.keys)
		back := int(time.Since(began) / (6 * time.Second)) // of ten a minute, one comes back each 6 s
		if n < 10 || n > 10+back {
			t.Errorf("%s quota for 10: %d of 100 at once were admitted by three replicas, and %d came back meanwhile", tt.name, n, back)
		}
	}
}

// rush sends so many requests at once, in turn to the replicas and with the
// keys, and returns how many were not refused.
func (in *installation) rush(t *testing.T, callers int, replicas, keys []string) int {
	t.Helper()
	var admitted atomic.Int32
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			res, err := post(t.Context(), replicas[i%len(replicas)]+"/v1/chat/completions", keys[i%len(keys)], chatBody(1, false))
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
			switch res.StatusCode {
			case http.StatusOK:
				admitted.Add(1)
			case http.StatusTooManyRequests:
			default:
				t.Errorf("status %s", res.Status)
			}
		})
	}
	wg.Wait()
	return int(admitted.Load())
}
