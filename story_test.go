package main

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"weir/migrations/pgtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"weir": func() { os.Exit(run()) },
	})
}

// TestStories runs what operators do at a shell: one script for each promise
// of the README. Besides testscript's own commands, scripts have
//
//	database [empty]  give the script a database of its own, migrated or not
//	address NAME      put a free loopback address into $NAME
//	waitfor URL       wait until the URL answers 200
//	keep NAME         keep the last word of the last output as $NAME
//	replace OLD NEW FILE              put one text in the place of another
//	chat URL KEY MODEL NAME           have a short chat and keep its id as $NAME
func TestStories(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Values["test"] = e.T()
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"database": storyDatabase,
			"address":  storyAddress,
			"waitfor":  storyWaitFor,
			"keep":     storyKeep,
			"replace":  storyReplace,
			"chat":     storyChat,
		},
	})
}

func storyDatabase(ts *testscript.TestScript, _ bool, args []string) {
	tb, ok := ts.Value("test").(testing.TB)
	if !ok {
		ts.Fatalf("the script runs outside of a test")
	}
	create := pgtest.New
	if len(args) == 1 && args[0] == "empty" {
		create = pgtest.NewEmpty
	}
	db := create(tb)
	secret := strings.Repeat("0123456789abcdef", 2)
	for name, value := range map[string]string{
		"WEIR_DATABASE_URL": db.AppURL, "WEIR_WORKER_DATABASE_URL": db.WorkerURL, "WEIR_OWNER_DATABASE_URL": db.OwnerURL,
		"WEIR_KEYS_PEPPER": "1:" + base64.StdEncoding.EncodeToString([]byte(secret)), "WEIR_MASTER_KEYS": "1:" + base64.StdEncoding.EncodeToString([]byte(secret)),
		"WEIR_CACHE_SALT_SECRET": secret,
	} {
		ts.Setenv(name, value)
	}
}

func storyAddress(ts *testscript.TestScript, _ bool, args []string) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	ts.Check(err)
	defer l.Close()
	ts.Setenv(args[0], l.Addr().String())
}

func storyWaitFor(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], http.NoBody)
		ts.Check(err)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			page, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK && (len(args) < 2 || strings.Contains(string(page), args[1])) {
				return
			}
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("%s does not answer 200: %v", args[0], err)
		case <-tick.C:
		}
	}
}

func storyReplace(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[2])
	ts.Check(os.WriteFile(path, []byte(strings.ReplaceAll(ts.ReadFile(args[2]), args[0], args[1])), 0o600))
}

func storyChat(ts *testscript.TestScript, _ bool, args []string) {
	res, err := post(context.Background(), args[0]+"/v1/chat/completions", args[1], chatWith(args[2], `"max_tokens":1`))
	ts.Check(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	ts.Check(err)
	if res.StatusCode != http.StatusOK {
		ts.Fatalf("%s: %s", res.Status, text)
	}
	ts.Setenv(args[3], res.Header.Get("X-Request-Id"))
}

func storyKeep(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], lastWord(ts.ReadFile("stdout")))
}
