package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// While Postgres is away, known keys are served and their receipts kept; when
// it is back, the receipts are there.
func TestServesKnownKeysWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	in := install(t)
	unseen := lastWord(runWeir(t, in.dir, in.environment, "key", "create", "--tenant", in.tenant, "--name", "unseen", "--quiet"))
	postgres, through := throughWire(t, in.environment)
	base, _ := in.serve(t, through...)
	ask := func(key string) (status int, id string) {
		t.Helper()
		res, err := post(t.Context(), base+"/v1/chat/completions", key, chatBody(3, true))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusOK && !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			t.Errorf("a stream without its end: %s", text)
		}
		return res.StatusCode, res.Header.Get("X-Request-Id")
	}
	if status, _ := ask(in.key); status != http.StatusOK {
		t.Fatalf("before: %d", status)
	}

	postgres.cut()
	status, id := ask(in.key)
	if status != http.StatusOK {
		t.Errorf("a known key while Postgres is away: %d", status)
	}
	if status, _ := ask(unseen); status != http.StatusServiceUnavailable {
		t.Errorf("a key that was never seen: %d, want 503: nobody knows that it is wrong", status)
	}
	var ready readiness
	if status := getJSON(t, in.ops+"/readyz", "", &ready); status != http.StatusOK || ready.Status != "degraded" || ready.Checks["postgres"] == "ok" {
		t.Errorf("/readyz: %d %+v", status, ready)
	}

	postgres.mend()
	eventually(t, 30*time.Second, func() string {
		if out := runWeir(t, in.dir, in.environment, "receipts", "--tenant", in.tenant, "--request", id); !strings.Contains(out, "completed") {
			return "no receipt of what was answered meanwhile: " + out
		}
		return ""
	})
	eventually(t, 30*time.Second, func() string {
		if status, _ := ask(unseen); status != http.StatusOK {
			return "the other key is still refused"
		}
		return ""
	})
}

// What runs when Postgres goes ends as it would have, and each receipt is stored
// once: on disk first, and in Postgres as soon as that is back. A slow Postgres
// is not one that is away.
func TestStreamsFinishWhilePostgresIsAwayAndAreStoredOnce(t *testing.T) {
	t.Parallel()
	in := install(t)
	postgres, through := throughWire(t, in.environment)
	base, _ := in.serve(t, through...)

	const streams = 8
	ids := make([]string, streams)
	bodies := make([]io.ReadCloser, streams)
	for i := range streams {
		res, err := post(t.Context(), base+"/v1/chat/completions", in.key, chatBody(40, true))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.ReadFull(res.Body, make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
		ids[i], bodies[i] = res.Header.Get("X-Request-Id"), res.Body
	}
	postgres.cut()
	for i, body := range bodies {
		text, err := io.ReadAll(body)
		if err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			t.Errorf("stream %d while Postgres is away: %v, %.300s", i, err, text)
		}
	}

	postgres.slow(200 * time.Millisecond)
	postgres.mend()
	eventually(t, 60*time.Second, func() string {
		out := runWeir(t, in.dir, in.environment, "receipts", "--tenant", in.tenant)
		for _, id := range ids {
			if n := strings.Count(out, id); n != 1 {
				return id + ": " + strings.Repeat("a receipt ", n) + "in\n" + out
			}
		}
		return ""
	})
	res, err := post(t.Context(), base+"/v1/chat/completions", in.key, chatBody(3, false))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("over a slow Postgres: %s", res.Status)
	}
}
