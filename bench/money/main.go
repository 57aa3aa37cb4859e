// Command money measures what billing costs and what it holds to: receipts
// stored a second, admission against money and limits, what racing callers can
// overspend, and how large the tables become. It needs Linux for CPU times, and
// runs a private Postgres with fsync on.
//
//	go run ./bench/money                       # print everything
//	go run ./bench/money -only settle,race     # some of it
//	go run ./bench/money -o docs/billing.md    # write the tables into the page
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"weir/bench/section"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := realMain(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "money:", err)
		os.Exit(1)
	}
}

// study is one thing that is measured, with a table of its own.
type study struct {
	name string
	run  func(ctx context.Context, h *house) (string, error)
}

// studies are all of them, in the order of the report.
func studies() []study {
	return []study{
		{"admission", admitting}, {"settle", settles}, {"race", race}, {"rounding", rounding}, {"size", size},
	}
}

// options are the command's flags.
type options struct {
	out  string
	only string
	rows int
}

func realMain(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var names []string
	for _, s := range studies() {
		names = append(names, s.name)
	}
	var o options
	flags := flag.NewFlagSet("money", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.out, "o", "", "the document whose marked section takes the report; without it, it is printed")
	flags.StringVar(&o.only, "only", strings.Join(names, ","), "what to measure, with commas between")
	flags.IntVar(&o.rows, "rows", 5_000_000, "receipts of the study of sizes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted := strings.Split(o.only, ",")
	for _, w := range wanted {
		if !slices.Contains(names, w) {
			return fmt.Errorf("no study %q; there are %s", w, strings.Join(names, ", "))
		}
	}

	h, err := open(ctx, o, func(what string) { fmt.Fprintln(stderr, time.Now().Format(time.TimeOnly), what) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(context.WithoutCancel(ctx))) }()
	var report strings.Builder
	fmt.Fprintf(&report, "Measured %s on %s with `make bench-billing`; Postgres with fsync on, on the same machine.\n", time.Now().UTC().Format(time.DateOnly), section.Machine())
	for _, s := range studies() {
		if !slices.Contains(wanted, s.name) {
			continue
		}
		text, err := s.run(ctx, h)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		report.WriteString("\n" + text)
	}
	fmt.Fprintf(&report, "\nThe machine's load average was %s at the end.\n", section.LoadAverage())
	if o.out == "" {
		_, err := io.WriteString(stdout, report.String())
		return err
	}
	return section.Place(o.out, "Billing", "money", report.String())
}
