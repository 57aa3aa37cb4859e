package main

import (
	"flag"
	"testing"
	"testing/synctest"
)

// bubbles runs functions in virtual time. The bubbles of testing/synctest are
// exactly that: the timers of the scheduler under measurement run in them as
// they are. They are only to be had from a test, so this program poses as one.
type bubbles struct{ t *testing.T }

// withBubbles runs a program that may use bubbles, which ends the process.
func withBubbles(program func(bubbles)) {
	testing.Init()
	_ = flag.CommandLine.Parse(nil) // those of package testing, at their defaults
	testing.Main(
		func(_, _ string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "replay", F: func(t *testing.T) {
			t.Helper()
			program(bubbles{t})
		}}}, nil, nil,
	)
}

// run runs f in a bubble of its own and returns when all in it has ended. It
// may be called from several goroutines.
func (b bubbles) run(f func()) {
	synctest.Test(b.t, func(*testing.T) { f() })
}
