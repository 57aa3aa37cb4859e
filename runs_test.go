package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// startOne is an installation whose engine the test looks into. The engine makes
// 24 to 88 tokens of each answer, with the time between two.
func startOne(t *testing.T, itl string) *whole {
	t.Helper()
	w := &whole{sound: startEngine(t, "--itl", itl)}
	w.installation = installWith(t, strings.ReplaceAll(testCatalogue, "ENGINE", w.sound))
	return w
}

// asked are the requests in which the engine was sent the text, the oldest
// first.
func (w *whole) asked(t *testing.T, text string) (found []arrived) {
	t.Helper()
	var log struct{ Requests []arrived }
	getJSON(t, w.sound+"/admin/requests?last=64", "", &log)
	for _, r := range log.Requests {
		if strings.Contains(r.Body, text) {
			found = append(found, r)
		}
	}
	return found
}

// becomesOfIt waits until the engine's only request with the text has the
// outcome; "" is one that runs.
func (w *whole) becomesOfIt(t *testing.T, text, outcome string, within time.Duration) {
	t.Helper()
	eventually(t, within, func() string {
		if got := w.asked(t, text); len(got) != 1 || got[0].Outcome != outcome {
			return fmt.Sprintf("the engine has %d requests, want one that is %q: %+v", len(got), outcome, got)
		}
		return ""
	})
}

// task asks for a response of as many tokens as the engine likes.
func task(text, more string) string {
	return fmt.Sprintf(`{"model":"sim-chat","input":%q%s}`, text, more)
}

const background = `,"background":true`

// Whatever ends a response before its last token stops the model server, too.
func TestTheModelServerStopsWithinASecondOfAnEnd(t *testing.T) {
	t.Parallel()
	redis := sharedRedis(t)
	w := startOne(t, "200ms")
	first, _ := w.serve(t, redis)
	second, _ := w.serve(t, redis)
	order := func(t *testing.T, text, key string) (id string) {
		t.Helper()
		status, r := respond(t, first, key, task(text, background))
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, r.Raw)
		}
		return r.Get("id").Str
	}
	for name, begin := range map[string]func(t *testing.T, text string) (end func()){
		"a run is cancelled at another replica": func(t *testing.T, text string) func() {
			t.Helper()
			id := order(t, text, w.key)
			return func() { call(t, http.MethodPost, second+"/v1/responses/"+id+"/cancel", w.key) }
		},
		"a run is deleted at another replica": func(t *testing.T, text string) func() {
			t.Helper()
			id := order(t, text, w.key)
			return func() { call(t, http.MethodDelete, second+"/v1/responses/"+id, w.key) }
		},
		"the key of a run is revoked": func(t *testing.T, text string) func() {
			t.Helper()
			key := w.makeKey(t, w.tenant)
			order(t, text, key.secret)
			return func() { runWeir(t, w.dir, w.environment, "key", "revoke", key.id) }
		},
		"a caller leaves a stream": func(t *testing.T, text string) func() {
			t.Helper()
			s := open(t, http.MethodPost, first+"/v1/responses", w.key, task(text, `,"stream":true`))
			return s.close
		},
		"a caller leaves before its document": func(t *testing.T, text string) func() {
			t.Helper()
			ctx, leave := context.WithCancel(t.Context())
			go func() {
				if res, err := post(ctx, first+"/v1/responses", w.key, task(text, "")); err == nil {
					_ = res.Body.Close()
				}
			}()
			return leave
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			end := begin(t, name)
			w.becomesOfIt(t, name, "", 30*time.Second)
			end()
			w.becomesOfIt(t, name, "aborted", time.Second+raceSlack())
		})
	}
}

// key is one that a test changes.
type key struct{ secret, id string }

func (in *installation) makeKey(t *testing.T, tenant string) key {
	t.Helper()
	told := runWeir(t, in.dir, in.environment, "key", "create", "--tenant", tenant)
	return key{secret: strings.Split(told, "\n")[1], id: keyIDOf(t, told)}
}
