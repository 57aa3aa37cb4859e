package main

import (
	"context"
	"strings"
	"testing"
)

func TestSimListensOnLoopbackUnlessTold(t *testing.T) {
	t.Parallel()
	for address, loopback := range map[string]bool{
		"127.0.0.1:0": true, "127.9.9.9:0": true, "[::1]:0": true, "localhost:0": true,
		":0": false, "0.0.0.0:0": false, "[::]:0": false, "10.1.2.3:0": false, "example.org:0": false, "nonsense": false,
	} {
		if got := onLoopback(address); got != loopback {
			t.Errorf("%s counts as loopback: %v", address, got)
		}
	}
	run := func(args ...string) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // it ends as soon as it listens
		cmd := simCommand()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(&strings.Builder{})
		return cmd.ExecuteContext(ctx)
	}
	if err := run("--listen", ":0"); err == nil || !strings.Contains(err.Error(), "--listen-anywhere") {
		t.Errorf("got %v", err)
	}
	if err := run("--listen", "127.0.0.1:0"); err != nil && !strings.Contains(err.Error(), "cancel") {
		t.Error(err)
	}
}
