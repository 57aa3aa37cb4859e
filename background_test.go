package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// sse are the events of one stream, as they come in.
type sse struct {
	events chan gjson.Result
	close  func()
	status int
}

// open begins to read a stream. The test's end closes it.
func open(t *testing.T, method, url, key, body string) *sse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	s := &sse{events: make(chan gjson.Result, 100_000), close: cancel, status: res.StatusCode}
	go func() {
		defer close(s.events)
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: {"); ok {
				s.events <- gjson.Parse("{" + data)
			}
		}
	}()
	t.Cleanup(cancel)
	return s
}

// next is the next event; the zero Result where the stream has ended.
func (s *sse) next(t *testing.T) gjson.Result {
	t.Helper()
	select {
	case e := <-s.events:
		return e
	case <-time.After(60 * time.Second):
		t.Fatal("no event for a minute")
		return gjson.Result{}
	}
}

// rest are the events until the stream ends. Their numbers follow one another.
func (s *sse) rest(t *testing.T, last int64) (events []gjson.Result) {
	t.Helper()
	for {
		e := s.next(t)
		if !e.Exists() {
			return events
		}
		if n := e.Get("sequence_number").Int(); n != last+1 {
			t.Errorf("event %s has number %d after %d", e.Get("type").Str, n, last)
		}
		last = e.Get("sequence_number").Int()
		events = append(events, e)
	}
}

func isTerminal(e gjson.Result) bool {
	switch e.Get("type").Str {
	case "response.completed", "response.incomplete", "response.failed":
		return true
	default:
		return false
	}
}

// oneEnd demands that the last event, and no other, is terminal.
func oneEnd(t *testing.T, events []gjson.Result, status string) {
	t.Helper()
	n := 0
	for _, e := range events {
		if isTerminal(e) {
			n++
		}
	}
	if n != 1 || !isTerminal(events[len(events)-1]) || events[len(events)-1].Get("response.status").Str != status {
		t.Errorf("%d terminal events, and the last is %s", n, events[len(events)-1].Raw)
	}
}

// becomes waits until the response has the status.
func becomes(t *testing.T, url, key, id, status string, within time.Duration) (response gjson.Result) {
	t.Helper()
	eventually(t, within, func() string {
		code, r := call(t, http.MethodGet, url+"/v1/responses/"+id, key)
		response = r
		if got := r.Get("status").Str; code != http.StatusOK || got != status {
			return fmt.Sprintf("%d, status %q, want %q", code, got, status)
		}
		return ""
	})
	return response
}

// sharedRedis starts a Redis that answers, and returns the setting for it.
func sharedRedis(t *testing.T) string {
	t.Helper()
	address := freeAddress(t)
	startRedisAt(t, address)
	return "WEIR_REDIS_URL=redis://" + address
}

// startRedisAt starts a Redis that answers there.
func startRedisAt(t *testing.T, address string) *exec.Cmd {
	t.Helper()
	_, port, _ := strings.Cut(address, ":")
	server := startRedis(t, port)
	eventually(t, 30*time.Second, func() string {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return ""
	})
	return server
}

func inBackground(tokens int, more string) string {
	return fmt.Sprintf(`{"model":"sim-chat","input":"a long task","background":true,"max_output_tokens":%d%s}`, tokens, more)
}

func TestABackgroundResponseIsQueuedAtOnceAndMade(t *testing.T) {
	t.Parallel()
	in := install(t)
	url, _ := in.serve(t)
	status, r := respond(t, url, in.key, inBackground(16, ""))
	if status != http.StatusOK || r.Get("status").Str != "queued" || !r.Get("background").Bool() || len(r.Get("output").Array()) != 0 {
		t.Fatalf("%d %s", status, r.Raw)
	}
	id := r.Get("id").Str
	r = becomes(t, url, in.key, id, "incomplete", 30*time.Second) // 16 tokens are all it may make
	if r.Get("output.0.content.0.text").Str == "" || r.Get("usage.output_tokens").Int() != 16 {
		t.Errorf("made %s", r.Raw)
	}
	if status, again := call(t, http.MethodPost, url+"/v1/responses/"+id+"/cancel", in.key); status != http.StatusOK || again.Get("status").Str != "incomplete" {
		t.Errorf("cancelled after its end: %d %s", status, again.Raw)
	}
	if status, next := respond(t, url, in.key, `{"model":"sim-chat","input":"more","max_output_tokens":16,"previous_response_id":"`+id+`"}`); status != http.StatusOK || next.Get("usage.input_tokens_details.cached_tokens").Int() == 0 {
		t.Errorf("gone on from: %d %s", status, next.Raw)
	}
	if status, refused := call(t, http.MethodGet, url+"/v1/responses/"+id+"?stream=true", in.key); status != http.StatusBadRequest {
		t.Errorf("streamed, though it was not asked for as a stream: %d %s", status, refused.Raw)
	}
}

func TestAnotherReplicaResumesAndCancels(t *testing.T) {
	t.Parallel()
	redis := sharedRedis(t)
	in := startOne(t, "100ms")
	first, _ := in.serve(t, redis)
	second, _ := in.serve(t, redis)

	s := open(t, http.MethodPost, first+"/v1/responses", in.key, inBackground(8000, `,"stream":true`))
	created := s.next(t)
	id := created.Get("response.id").Str
	if created.Get("type").Str != "response.created" || created.Get("response.status").Str != "queued" {
		t.Fatalf("begins with %s", created.Raw)
	}
	s.close() // nobody listens any more, and it goes on

	for _, url := range []string{second, first} {
		back := open(t, http.MethodGet, url+"/v1/responses/"+id+"?stream=true&starting_after=3", in.key, "")
		if e := back.next(t); e.Get("sequence_number").Int() != 4 {
			t.Fatalf("%s resumes with %s", url, e.Raw)
		}
		back.close()
	}
	whole := open(t, http.MethodGet, second+"/v1/responses/"+id+"?stream=true", in.key, "")
	for range 20 {
		whole.next(t)
	}
	began := time.Now()
	status, r := call(t, http.MethodPost, second+"/v1/responses/"+id+"/cancel", in.key)
	if status != http.StatusOK || r.Get("status").Str != "cancelled" {
		t.Fatalf("cancel: %d %s", status, r.Raw)
	}
	events := whole.rest(t, 19)
	oneEnd(t, events, "cancelled")
	if took := time.Since(began); took > time.Second+raceSlack() {
		t.Errorf("the stream ended %v after it was cancelled", took)
	}
	for _, url := range []string{first, second} {
		if status, r := call(t, http.MethodPost, url+"/v1/responses/"+id+"/cancel", in.key); status != http.StatusOK || r.Get("status").Str != "cancelled" {
			t.Errorf("cancelled again: %d %s", status, r.Raw)
		}
	}
}

func TestOnlyABackgroundResponseCanBeCancelled(t *testing.T) {
	t.Parallel()
	in := install(t)
	url, _ := in.serve(t)
	_, r := respond(t, url, in.key, `{"model":"sim-chat","input":"hi","max_output_tokens":16}`)
	status, got := call(t, http.MethodPost, url+"/v1/responses/"+r.Get("id").Str+"/cancel", in.key)
	if status != http.StatusBadRequest || got.Get("error.message").Str != "Cannot cancel a synchronous response." {
		t.Errorf("%d %s", status, got.Raw)
	}
	if status, got := call(t, http.MethodPost, url+"/v1/responses/resp_none/cancel", in.key); status != http.StatusNotFound {
		t.Errorf("one that isn't there: %d %s", status, got.Raw)
	}
}

func TestAStreamIsFailedWhoseReplicaDiedAfterItsFirstToken(t *testing.T) {
	t.Parallel()
	redis := sharedRedis(t)
	in := startOne(t, "100ms")
	first, p := in.serve(t, redis)
	s := open(t, http.MethodPost, first+"/v1/responses", in.key, inBackground(8000, `,"stream":true`))
	id, last := "", int64(-1)
	for id == "" || last < 20 {
		e := s.next(t)
		if got := e.Get("response.id").Str; got != "" {
			id = got
		}
		last = e.Get("sequence_number").Int()
	}
	p.signal(syscall.SIGKILL)
	<-p.done
	second, _ := in.serve(t, redis)
	// What was shown can't be taken back: it is not run a second time.
	back := open(t, http.MethodGet, fmt.Sprintf("%s/v1/responses/%s?stream=true&starting_after=%d", second, id, last), in.key, "")
	oneEnd(t, back.rest(t, last), "failed")
	if r := becomes(t, second, in.key, id, "failed", time.Second); r.Get("error.code").Str != "server_error" {
		t.Errorf("failed as %s", r.Get("error").Raw)
	}
}

func TestFourReadersFollowAStreamUntilItIsDeleted(t *testing.T) {
	t.Parallel()
	in := startOne(t, "100ms")
	url, _ := in.serve(t)
	s := open(t, http.MethodPost, url+"/v1/responses", in.key, inBackground(8000, `,"stream":true`))
	id := s.next(t).Get("response.id").Str
	at := url + "/v1/responses/" + id
	var readers []*sse
	for range 4 {
		r := open(t, http.MethodGet, at+"?stream=true", in.key, "")
		if e := r.next(t); e.Get("type").Str != "response.created" || e.Get("response.id").Str != id {
			t.Fatalf("a full replay begins with %s", e.Raw)
		}
		readers = append(readers, r)
	}
	if fifth := open(t, http.MethodGet, at+"?stream=true", in.key, ""); fifth.status != http.StatusTooManyRequests {
		t.Errorf("a fifth reader: %d", fifth.status)
	}
	readers[0].close()
	eventually(t, 10*time.Second, func() string {
		again := open(t, http.MethodGet, at+"?stream=true", in.key, "")
		defer again.close()
		if again.status != http.StatusOK {
			return fmt.Sprint("the free place: ", again.status)
		}
		return ""
	})
	if status, r := call(t, http.MethodDelete, at, in.key); status != http.StatusOK {
		t.Errorf("delete: %d %s", status, r.Raw)
	}
	if status, _ := call(t, http.MethodGet, at, in.key); status != http.StatusNotFound {
		t.Errorf("deleted, but shown: %d", status)
	}
	for _, r := range append(readers[1:], s) {
		for e := r.next(t); e.Exists(); e = r.next(t) {
			continue
		}
	}
}

func TestARevokedKeyTakesItsRunsAndReadersAlong(t *testing.T) {
	t.Parallel()
	in := startOne(t, "100ms")
	url, _ := in.serve(t)
	other := lastWord(runWeir(t, in.dir, in.environment, "key", "create", "--tenant", in.tenant, "--name", "second", "--quiet"))
	s := open(t, http.MethodPost, url+"/v1/responses", in.key, inBackground(8000, `,"stream":true`))
	id := s.next(t).Get("response.id").Str
	becomes(t, url, other, id, "in_progress", 30*time.Second)
	runWeir(t, in.dir, in.environment, "key", "revoke", in.keyID)
	revoked := time.Now()
	becomes(t, url, other, id, "cancelled", 10*time.Second)
	for e := s.next(t); e.Exists(); e = s.next(t) {
		continue
	}
	if took := time.Since(revoked); took > 5*time.Second+raceSlack() {
		t.Errorf("it ended %v after its key", took)
	}
	whole := open(t, http.MethodGet, url+"/v1/responses/"+id+"?stream=true", other, "")
	oneEnd(t, whole.rest(t, -1), "cancelled")
}
