//go:build !race

package scheduler_test

// raced is whether the race detector runs, under which pools forget at random.
const raced = false
