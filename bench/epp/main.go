// Command epp measures ways to schedule a pool beside each other, on the same
// simulated model servers and with the same requests: the embedded scheduler,
// the same one behind `weir scheduler`'s stream, and llm-d's Endpoint Picker,
// where EPP_BIN names one. Clocks are real.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"weir/bench/section"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := realMain(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "epp:", err)
		stop()
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	binary  string
	out     string
	seconds float64
}

func realMain(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == serveRole {
		return serveScheduler(ctx, args[1:], stdout)
	}
	var o options
	flags := flag.NewFlagSet("epp", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.binary, "epp", os.Getenv("EPP_BIN"), "llm-d's Endpoint Picker (default: EPP_BIN); empty: its rows are left out")
	flags.StringVar(&o.out, "o", "", "document whose marked section takes the report")
	flags.Float64Var(&o.seconds, "seconds", 8, "how long each of the loads lasts")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.seconds <= 0 {
		return errors.New("-seconds must be positive")
	}
	if o.binary == "" {
		fmt.Fprintln(stderr, "EPP_BIN names no Endpoint Picker: its rows are left out (make test-epp says how to get one)")
	}
	text, err := measure(ctx, stderr, o)
	if err != nil {
		return err
	}
	if o.out == "" {
		_, err = io.WriteString(stdout, text)
		return err
	}
	return section.Place(o.out, "Scheduling", "epp", text)
}

// measure runs every row of every table.
func measure(ctx context.Context, progress io.Writer, o options) (string, error) {
	var all []row
	last := time.Duration(o.seconds * float64(time.Second))
	for _, kind := range kinds(o.binary) {
		r := row{name: kind.name}
		for _, step := range []struct {
			what string
			do   func(context.Context, way, *row) error
		}{
			{"decisions", decisions},
			{"prefix hits", prefixes},
			{"isolation", func(ctx context.Context, k way, r *row) error { return isolation(ctx, k, r, last) }},
			{"fairness", func(ctx context.Context, k way, r *row) error { return fairness(ctx, k, r, last) }},
		} {
			fmt.Fprintf(progress, "%s: %s\n", kind.name, step.what)
			if err := step.do(ctx, kind, &r); err != nil {
				return "", fmt.Errorf("%s: %s: %w", kind.name, step.what, err)
			}
		}
		all = append(all, r)
	}
	return report(all, o), nil
}
