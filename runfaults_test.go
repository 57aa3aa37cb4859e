package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/tidwall/gjson"
)

// twoModels is the test catalogue with another model, of the same name to the
// engine, that is known by an alias as well.
func twoModels(engine string) string {
	return strings.Replace(strings.ReplaceAll(testCatalogue, "ENGINE", engine), "models:\n",
		"models:\n  - {name: second, engine_model: sim-chat, aliases: [also], operations: [chat], routes: [{pool: sim}]}\n", 1)
}

// change is an operator's, or an accident: SQL that no command has.
func (in *installation) change(t *testing.T, sql string, args ...any) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), in.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	if _, err := admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// kept is how a response stands in the database, whoever may see it.
func (in *installation) kept(t *testing.T, id string) (status string) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), in.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	if err := admin.QueryRow(t.Context(), `SELECT status FROM responses WHERE id = $1`, id).Scan(&status); err != nil {
		t.Fatal(err)
	}
	return status
}

// What a run was ordered with may be gone when its turn comes: it ends then, and
// says why. One that may still be made is.
func TestARunWhoseRightsWereLostBeforeItsTurnEnds(t *testing.T) {
	t.Parallel()
	w := &whole{sound: startEngine(t, "--itl", "2s")}
	w.installation = installWith(t, twoModels(w.sound))
	url, _ := w.serve(t, "WEIR_BACKGROUND_RUNS=1")
	_, r := respond(t, url, w.key, task("holds", background))
	holds := r.Get("id").Str // the only place
	becomes(t, url, w.key, holds, "in_progress", 30*time.Second)

	other := lastWord(runWeir(t, w.dir, w.environment, "tenant", "create", "other", "--plan", "basic", "--quiet"))
	tests := []struct {
		name, tenant, model string
		lose                func(k key)
		status, code        string
	}{
		{"the model is gone", w.tenant, "second", nil, "failed", "model_not_found"}, // for which see below
		{"the key lost the model", w.tenant, "sim-chat", func(k key) { w.change(t, `UPDATE keys SET models = '{second}' WHERE id = $1`, k.id) }, "failed", "model_not_found"},
		{"the key lost the scope", w.tenant, "sim-chat", func(k key) { w.change(t, `UPDATE keys SET scopes = '{inference:chat}' WHERE id = $1`, k.id) }, "failed", "insufficient_permissions"},
		{"the key was revoked", w.tenant, "sim-chat", func(k key) { runWeir(t, w.dir, w.environment, "key", "revoke", k.id) }, "cancelled", ""},
		{"the key has expired", w.tenant, "sim-chat", func(k key) { w.change(t, `UPDATE keys SET expires_at = now() WHERE id = $1`, k.id) }, "cancelled", ""},
		{"the tenant was suspended", other, "sim-chat", func(key) { runWeir(t, w.dir, w.environment, "tenant", "suspend", other) }, "cancelled", ""},
		{"all is as it was", w.tenant, "sim-chat", func(key) {}, "in_progress", ""},
	}
	ids := make([]string, len(tests))
	for i, tt := range tests {
		k := w.makeKey(t, tt.tenant)
		status, r := respond(t, url, k.secret, `{"model":"`+tt.model+`","input":"x","background":true}`)
		if ids[i] = r.Get("id").Str; status != http.StatusOK {
			t.Fatalf("%s: %d %s", tt.name, status, r.Raw)
		}
		if tt.lose != nil {
			tt.lose(k)
		}
	}
	file := filepath.Join(t.TempDir(), "catalogue.yaml")
	writeTo(t, file, strings.ReplaceAll(testCatalogue, "ENGINE", w.sound)) // without the second model
	runWeir(t, w.dir, w.environment, "apply", "-f", file, "--prune")
	eventually(t, 20*time.Second, func() string {
		if status, r := respond(t, url, w.key, `{"model":"second","input":"x"}`); status != http.StatusNotFound {
			return fmt.Sprintf("the model is still there: %d %s", status, r.Raw)
		}
		return ""
	})
	call(t, http.MethodPost, url+"/v1/responses/"+holds+"/cancel", w.key)
	for i, tt := range tests {
		eventually(t, 30*time.Second, func() string {
			if got := w.kept(t, ids[i]); got != tt.status {
				return fmt.Sprintf("%s: %s, want %s", tt.name, got, tt.status)
			}
			return ""
		})
		if tt.tenant != w.tenant {
			continue
		}
		_, r := call(t, http.MethodGet, url+"/v1/responses/"+ids[i], w.key)
		if r.Get("error.code").Str != tt.code || (tt.code != "") != (r.Get("error.message").Str != "") {
			t.Errorf("%s: shown as %s", tt.name, r.Raw)
		}
	}
	if got := w.asked(t, `"x"`); len(got) != 1 {
		t.Errorf("the engine was asked %d times, want once: for the run that has all its rights", len(got))
	}
}

// A run is asked again while it is made, and pays for what it got.
func TestARunThatLosesARightEndsAtItsNextRenewal(t *testing.T) {
	t.Parallel()
	w := &whole{sound: startEngine(t, "--itl", "1s")}
	w.installation = installWith(t, twoModels(w.sound))
	url, _ := w.serve(t)
	for name, sql := range map[string]string{
		"the scope": `UPDATE keys SET scopes = '{inference:chat}' WHERE id = $1`,
		"the model": `UPDATE keys SET models = '{sim-chat}' WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := w.makeKey(t, w.tenant)
			w.change(t, `UPDATE keys SET models = '{second}' WHERE id = $1`, k.id)
			_, r := respond(t, url, k.secret, `{"model":"also","input":"`+name+`","background":true}`)
			id := r.Get("id").Str
			becomes(t, url, w.key, id, "in_progress", 30*time.Second)
			w.change(t, sql, k.id)
			ended := becomes(t, url, w.key, id, "failed", 30*time.Second)
			if ended.Get("error.code").Str != "insufficient_permissions" || ended.Get("output.0.content.0.text").Str == "" {
				t.Errorf("ended as %s", ended.Raw)
			}
			w.becomesOfIt(t, name, "aborted", time.Second+raceSlack())
			eventually(t, 10*time.Second, func() string {
				if out := runWeir(t, w.dir, w.environment, "receipts", "--tenant", w.tenant); strings.Count(out, "access_lost") == 0 {
					return "no receipt of it: " + out
				}
				return ""
			})
		})
	}
}

// streamed orders a background stream and reads its first events.
func streamed(t *testing.T, url, key, text string) (s *sse, id string, last int64) {
	t.Helper()
	s = open(t, http.MethodPost, url+"/v1/responses", key, task(text, background+`,"stream":true`))
	for last < 6 {
		e := s.next(t)
		if got := e.Get("response.id").Str; got != "" {
			id = got
		}
		last = e.Get("sequence_number").Int()
	}
	return s, id, last
}

// whatIsLeft demands of a stream whose events are gone: from the beginning it is
// the finished response, with each text in one piece; from a number it is a
// fault that says so.
func whatIsLeft(t *testing.T, url, key, id string, response gjson.Result) {
	t.Helper()
	status, refused := call(t, http.MethodGet, url+"/v1/responses/"+id+"?stream=true&starting_after=3", key)
	if status != http.StatusBadRequest || refused.Get("error.param").Str != "starting_after" || !strings.Contains(refused.Get("error.message").Str, "can no longer be streamed") {
		t.Errorf("from the middle: %d %s", status, refused.Raw)
	}
	events := open(t, http.MethodGet, url+"/v1/responses/"+id+"?stream=true", key, "").rest(t, -1)
	oneEnd(t, events, response.Get("status").Str)
	if events[0].Get("type").Str != "response.created" || events[len(events)-1].Get("response").Raw != response.Raw {
		t.Errorf("from the beginning it is %v", events)
	}
	text := slices.IndexFunc(events, func(e gjson.Result) bool { return e.Get("type").Str == "response.output_text.done" })
	if text < 0 || events[text].Get("text").Str != response.Get("output.0.content.0.text").Str {
		t.Errorf("its text is not the response's: %v", events)
	}
}

func TestAStreamWhoseEventsHaveExpiredIsTheFinishedResponse(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	startRedisAt(t, address)
	w := startOne(t, "5ms")
	url, _ := w.serve(t, "WEIR_REDIS_URL=redis://"+address)
	s := open(t, http.MethodPost, url+"/v1/responses", w.key, inBackground(16, `,"stream":true`))
	id := s.next(t).Get("response.id").Str
	oneEnd(t, s.rest(t, 0), "incomplete")
	response := becomes(t, url, w.key, id, "incomplete", time.Second+raceSlack())

	client := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(t.Context(), "weir:events:*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	for _, k := range keys {
		if left := client.TTL(t.Context(), k).Val(); left <= 0 || left > 10*time.Minute {
			t.Errorf("%s would live for %v", k, left)
		}
		if err := client.PExpire(t.Context(), k, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	whatIsLeft(t, url, w.key, id, response)
}

// Redis holds copies of events, and no more: a run ends well without it, and who
// followed it is told of the end.
func TestARunOutlivesRedis(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	server := startRedisAt(t, address)
	w := startOne(t, "200ms")
	url, _ := w.serve(t, "WEIR_REDIS_URL=redis://"+address)
	w.serve(t, "WEIR_REDIS_URL=redis://"+address) // it need not be the one that was asked who runs it
	s, id, _ := streamed(t, url, w.key, "a long task")
	_ = server.Process.Signal(syscall.SIGKILL)
	_ = server.Wait()
	var response gjson.Result
	eventually(t, 90*time.Second, func() string {
		_, response = call(t, http.MethodGet, url+"/v1/responses/"+id, w.key)
		if got := response.Get("status").Str; got != "completed" && got != "incomplete" {
			return "it is " + got
		}
		return ""
	})
	if w.becomesOfIt(t, "a long task", "completed", time.Second); response.Get("usage.output_tokens").Int() == 0 {
		t.Errorf("made %s", response.Raw)
	}
	var last gjson.Result
	for e := s.next(t); e.Exists(); e = s.next(t) {
		last = e
	}
	if last.Get("response").Raw != response.Raw {
		t.Errorf("who followed it was told %s at last, want %s", last.Raw, response.Raw)
	}
	whatIsLeft(t, url, w.key, id, response)

	startRedisAt(t, address) // empty
	whatIsLeft(t, url, w.key, id, response)
}

// A log that lost its beginning in the middle of a run shows no half of it.
func TestAStreamWhoseEventsAreLostHalfwayHasNoHole(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	startRedisAt(t, address)
	w := startOne(t, "200ms")
	url, _ := w.serve(t, "WEIR_REDIS_URL=redis://"+address)
	s, id, _ := streamed(t, url, w.key, "halfway")
	s.close()
	client := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = client.Close() }()
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	back := open(t, http.MethodGet, url+"/v1/responses/"+id+"?stream=true", w.key, "")
	call(t, http.MethodPost, url+"/v1/responses/"+id+"/cancel", w.key)
	events := back.rest(t, -1)
	oneEnd(t, events, "cancelled")
}

// A replica that is told to stop gives its runs back: another begins again those
// of which nobody saw output, and ends the others.
func TestAReplicaThatStopsGivesItsRunsBack(t *testing.T) {
	t.Parallel()
	redis := sharedRedis(t)
	w := startOne(t, "200ms")
	first, p := w.serve(t, redis)
	_, r := respond(t, first, w.key, task("unseen", background))
	unseen := r.Get("id").Str
	s, seen, last := streamed(t, first, w.key, "seen")
	w.becomesOfIt(t, "unseen", "", 30*time.Second)
	second, _ := w.serve(t, redis)

	s.close() // else it would go on until the stream is read to its end
	p.signal(syscall.SIGTERM)
	oneEnd(t, open(t, http.MethodGet, fmt.Sprintf("%s/v1/responses/%s?stream=true&starting_after=%d", second, seen, last), w.key, "").rest(t, last), "failed")
	if r := becomes(t, second, w.key, seen, "failed", time.Second+raceSlack()); r.Get("error.code").Str != "server_is_overloaded" {
		t.Errorf("failed as %s", r.Get("error").Raw)
	}
	if r := becomes(t, second, w.key, unseen, "completed", 60*time.Second); r.Get("output.0.content.0.text").Str == "" {
		t.Errorf("made %s", r.Raw)
	}
	got := w.asked(t, "unseen")
	if len(got) != 2 || got[0].Outcome != "aborted" || got[1].Outcome != "completed" {
		t.Errorf("the engine was asked %+v", got)
	}
	<-p.done
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// One that is killed is found by its silence.
func TestARunOutlivesItsReplica(t *testing.T) {
	t.Parallel()
	w := startOne(t, "200ms")
	first, p := w.serve(t)
	_, r := respond(t, first, w.key, task("unseen", background))
	id := r.Get("id").Str
	w.becomesOfIt(t, "unseen", "", 30*time.Second)
	p.signal(syscall.SIGKILL)
	<-p.done
	second, _ := w.serve(t)
	// It is begun again, once, as nobody saw any of it.
	becomes(t, second, w.key, id, "completed", 90*time.Second)
	if got := w.asked(t, "unseen"); len(got) != 2 || got[0].Outcome != "aborted" || got[1].Outcome != "completed" {
		t.Errorf("the engine was asked %+v", got)
	}
}
