package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sharedFleet is two replicas of the gateway before one place, which two
// processes of `weir scheduler`, primary and standby, give out.
type sharedFleet struct {
	*installation

	replicas   [2]string // base URLs
	schedulers [2]*process
	opses      [2]string
	settings   [2][]string
	other      string // key of a second tenant
}

func shareFleet(t *testing.T) *sharedFleet {
	t.Helper()
	listen := [2]string{freeAddress(t), freeAddress(t)}
	f := &sharedFleet{installation: installWith(t, strings.NewReplacer("ENGINE", startEngine(t),
		"  - name: sim\n", fmt.Sprintf("  - name: sim\n    scheduler: {kind: weir, epp: [\"grpc://%s\", \"grpc://%s\"], max_concurrency: 1}\n", listen[0], listen[1]),
	).Replace(testCatalogue))}
	tenant := lastWord(runWeir(t, f.dir, f.environment, "tenant", "create", "other", "--plan", "basic", "--quiet"))
	f.other = lastWord(runWeir(t, f.dir, f.environment, "key", "create", "--tenant", tenant, "--name", "first", "--quiet"))
	for i := range f.schedulers {
		f.opses[i] = freeAddress(t)
		f.settings[i] = append(slices.Clip(f.environment),
			"WEIR_SCHEDULER_LISTEN="+listen[i], "WEIR_OPS_ADDR="+f.opses[i], "WEIR_SCHEDULER_LEASE_TTL=1s", "WEIR_DRAIN_TIMEOUT=20s")
		f.start(t, i)
		f.is(t, i, i == 0)
	}
	for i := range f.replicas {
		f.replicas[i], _ = f.serve(t, "WEIR_REPLICAS=2")
		eventually(t, 30*time.Second, func() string { return f.ask(t.Context(), i, f.key, 1) })
	}
	return f
}

func (f *sharedFleet) start(t *testing.T, i int) {
	t.Helper()
	f.schedulers[i] = startWeir(t, f.dir, f.settings[i], "scheduler")
	waitFor(t, "http://"+f.opses[i]+"/readyz")
}

// is waits until a scheduler is the primary, or isn't.
func (f *sharedFleet) is(t *testing.T, i int, primary bool) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		var page struct {
			Checks map[string]string `json:"checks"`
		}
		getJSON(t, "http://"+f.opses[i]+"/readyz", "", &page)
		if said := page.Checks["primary"]; primary && said != "ok" || !primary && !strings.HasPrefix(said, "standby: another") {
			return fmt.Sprintf("scheduler %d says %q", i, said)
		}
		return ""
	})
}

// ask has a chat of so many tokens; what it returns is what went wrong.
func (f *sharedFleet) ask(ctx context.Context, replica int, key string, tokens int) string {
	res, err := post(ctx, f.replicas[replica]+"/v1/chat/completions", key, chatBody(tokens, false))
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		return fmt.Sprintf("%s: %.300s", res.Status, body)
	}
	return ""
}

// occupy runs a stream on the one place until ctx ends, and reads it to its end.
// Done says what its last line was.
func (f *sharedFleet) occupy(ctx context.Context, t *testing.T, tokens int) (done <-chan string) {
	t.Helper()
	res, err := post(ctx, f.replicas[0]+"/v1/chat/completions", f.key, chatWith("sim-chat", fmt.Sprintf(`"stream":true,"max_tokens":%d,"ignore_eos":true`, tokens)))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	if !lines.Scan() {
		t.Fatalf("no stream: %s", res.Status)
	}
	ends := make(chan string, 1)
	go func() {
		defer res.Body.Close()
		last := ""
		for lines.Scan() {
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
		ends <- last
	}()
	return ends
}

// queued waits until so many wait at a scheduler.
func (f *sharedFleet) queued(t *testing.T, scheduler, want int) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		var page struct {
			Pools map[string]struct {
				State struct {
					Queued int `json:"queued"`
				} `json:"state"`
			} `json:"pools"`
		}
		getJSON(t, "http://"+f.opses[scheduler]+"/ops/v1/pools", opsToken, &page)
		if got := page.Pools["sim"].State.Queued; got != want {
			return fmt.Sprintf("%d wait, not %d", got, want)
		}
		return ""
	})
}

// explains checks that the scheduler remembers why, and `weir explain` asks it.
func (f *sharedFleet) explains(t *testing.T) {
	t.Helper()
	res, err := post(t.Context(), f.replicas[1]+"/v1/chat/completions", f.key, chatBody(1, false))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	asks := append(slices.Clip(f.environment), "WEIR_OPS_URLS=http://"+f.opses[0])
	said := runWeir(t, f.dir, asks, "explain", "--json", res.Header.Get("X-Request-Id"))
	if !strings.Contains(said, `"endpoint":"sim-1"`) || !strings.Contains(said, "others go first") && !strings.Contains(said, "dispatched at once") {
		t.Errorf("weir explain says %s", said)
	}
}

func TestTenantsOfTwoReplicasWaitInCommonOrder(t *testing.T) {
	t.Parallel()
	f := shareFleet(t)
	f.explains(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	occupied := f.occupy(ctx, t, 20_000)

	const flood, few = 16, 2
	order := make(chan string, flood+few)
	var all sync.WaitGroup
	send := func(replica int, key, name string, waiting int) {
		all.Go(func() {
			if wrong := f.ask(t.Context(), replica, key, 10); wrong != "" {
				t.Errorf("%s: %s", name, wrong)
			}
			order <- name
		})
		f.queued(t, 0, waiting)
	}
	for i := range flood {
		send(0, f.key, "flood", i+1)
	}
	for i := range few {
		send(1, f.other, "few", flood+i+1)
	}
	leave()
	<-occupied
	all.Wait()
	close(order)
	var names []string
	last := 0
	for name := range order {
		names = append(names, name)
		if name == "few" {
			last = len(names)
		}
	}
	// The tenant at the second replica came last, and has its turns before half of
	// the flood is through: all of them wait at one place.
	if last > flood/2+few {
		t.Errorf("order %v: the second tenant's last went as number %d", names, last)
	}
}

func TestThePrimarySchedulersDeathCutsNoStreamAndLosesNoRequest(t *testing.T) {
	t.Parallel()
	f := shareFleet(t)
	occupied := f.occupy(t.Context(), t, 600) // about three seconds
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			if wrong := f.ask(t.Context(), i%2, []string{f.key, f.other}[i%2], 5); wrong != "" {
				t.Errorf("a request that waited: %s", wrong)
			}
		})
	}
	f.queued(t, 0, 6)
	f.schedulers[0].stop(t, syscall.SIGKILL)
	died := time.Now()
	f.is(t, 1, true)
	if took := time.Since(died); took > 5*time.Second+raceSlack() {
		t.Errorf("the standby took over after %v, with a lease of 1 s", took)
	}
	all.Wait()
	if last := <-occupied; last != "data: [DONE]" {
		t.Errorf("the stream that ran ended with %q", last)
	}

	// The one that died comes back as the standby, and takes over when it may.
	f.start(t, 0)
	f.is(t, 0, false)
	second := f.occupy(t.Context(), t, 200)
	f.schedulers[1].stop(t, syscall.SIGTERM)
	if last := <-second; last != "data: [DONE]" {
		t.Errorf("the stream that ran through the restart ended with %q", last)
	}
	f.is(t, 0, true)
	eventually(t, 10*time.Second, func() string { return f.ask(t.Context(), 1, f.other, 1) })
}
