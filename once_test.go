package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// postOnce sends a request with a key of its caller's, and returns status,
// header and body.
func postOnce(ctx context.Context, url, key, once, body string) (int, http.Header, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", once)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(raw), err
}

// A request that is sent many times at once to two replicas, and again later, is
// run and billed once; everybody gets the same answer.
func TestARequestWithAKeyIsRunOnceByAllReplicas(t *testing.T) { //nolint:tparallel // its receipts are counted when all have ended
	t.Parallel()
	in := install(t)
	catalogue := strings.NewReplacer("ENGINE", startEngine(t), "    fairness: tenant\n", "    fairness: tenant\n    retention_days: 30\n").Replace(testCatalogue)
	writeTo(t, in.dir+"/kept.yaml", catalogue)
	runWeir(t, in.dir, in.environment, "apply", "-f", in.dir+"/kept.yaml")
	first, _ := in.serve(t)
	second, _ := in.serve(t)
	t.Run("each", func(t *testing.T) { in.eachOnce(t, first, second) })
	if n := strings.Count(runWeir(t, in.dir, in.environment, "receipts", "--tenant", in.tenant), "req_"); n != 4 {
		t.Errorf("%d receipts for four keys", n)
	}
}

func (in *installation) eachOnce(t *testing.T, first, second string) {
	t.Helper()
	for once, what := range map[string]struct{ path, body string }{
		"document":  {"/v1/chat/completions", chatBody(20, false)},
		"stream":    {"/v1/chat/completions", chatBody(20, true)},
		"response":  {"/v1/responses", `{"model":"sim-chat","input":"hello","max_output_tokens":16}`},
		"completed": {"/v1/completions", `{"model":"sim-chat","prompt":"hello","max_tokens":8}`},
	} {
		t.Run(once, func(t *testing.T) {
			t.Parallel()
			answers := make([]string, 8)
			originals := make([]string, len(answers))
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() {
					url := [...]string{first, second}[i%2] + what.path
					status := http.StatusConflict
					for tries := 0; status == http.StatusConflict && tries < 300; tries++ {
						var header http.Header
						var err error
						if status, header, answers[i], err = postOnce(t.Context(), url, in.key, once, what.body); err != nil {
							t.Error(err)
							return
						}
						originals[i] = header.Get("X-Request-Id")
						if header.Get("Idempotency-Replayed") == "true" {
							originals[i] = header.Get("X-Weir-Original-Request")
						}
						<-time.After(100 * time.Millisecond)
					}
					if status != http.StatusOK {
						t.Errorf("status %d: %s", status, answers[i])
					}
				})
			}
			wg.Wait()
			for i := range answers {
				if answers[i] != answers[0] || originals[i] != originals[0] || originals[i] == "" {
					t.Errorf("answer %d of request %q differs from that of %q:\n%s\n%s", i, originals[i], originals[0], answers[i], answers[0])
				}
			}
			if what.path != "/v1/chat/completions" {
				return
			}
			if status, _, body, err := postOnce(t.Context(), second+what.path, in.key, once, chatBody(21, false)); err != nil || status != http.StatusUnprocessableEntity {
				t.Errorf("another body: %d (%v): %s", status, err, body)
			}
		})
	}
}

// A streamed order is made once also if the replica that it came by dies while
// its caller listens; who listened to the end is given the stream again.
func TestAnOrderWithAKeyIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	engine := startEngine(t, "--itl", "20ms")
	in := installWith(t, strings.NewReplacer("ENGINE", engine, "    fairness: tenant\n", "    fairness: tenant\n    retention_days: 30\n").Replace(testCatalogue))
	first, p := in.serve(t)
	again := func(url, once, body string, status int, want string) {
		t.Helper()
		got, header, text, err := postOnce(t.Context(), url+"/v1/responses", in.key, once, body)
		if err != nil || got != status || !strings.Contains(text+header.Get("Idempotency-Replayed"), want) {
			t.Errorf("again: %d (%v): %s, want %d and %s", got, err, text, status, want)
		}
	}
	short, long := inBackground(16, `,"stream":true`), inBackground(8000, `,"stream":true`)
	status, _, whole, err := postOnce(t.Context(), first+"/v1/responses", in.key, "short", short)
	if err != nil || status != http.StatusOK || !strings.HasSuffix(whole, "data: [DONE]\n\n") {
		t.Fatalf("%d (%v): %s", status, err, whole)
	}
	again(first, "short", short, http.StatusOK, whole+"true")

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, first+"/v1/responses", strings.NewReader(long))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + in.key}, "Content-Type": {"application/json"}, "Idempotency-Key": {"long"}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	again(first, "long", long, http.StatusConflict, "idempotency_answer_not_kept")
	p.signal(syscall.SIGKILL)
	<-p.done
	second, _ := in.serve(t)
	again(second, "long", long, http.StatusConflict, "idempotency_answer_not_kept")
}
