package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
)

func receiptShowCommand() *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show REQUEST_ID",
		Short: "Explain what one request cost, down to its price and its tokens",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			var e *billing.Explanation
			err = m.store.InTenant(cmd.Context(), id, func(tx pgx.Tx) (err error) {
				e, err = billing.Explain(cmd.Context(), tx, id, args[0])
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(m.out)
				enc.SetIndent("", "  ")
				return enc.Encode(e)
			}
			return printExplanation(m.out, e)
		}),
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "whose request it was")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func printExplanation(out io.Writer, e *billing.Explanation) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	r := &e.Receipt
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	how := "one answer"
	if r.Stream {
		how = "stream"
	}
	fmt.Fprintf(w, "request\t%s, %s\n", r.RequestID, r.Outcome)
	fmt.Fprintf(w, "from\t%s, project %s, key %s\n", r.Tenant, r.Project, r.Key)
	fmt.Fprintf(w, "asked\t%s of %s, %s, tier %s, band %s\n", r.Operation, r.Model, how, r.Tier, r.Band)
	fmt.Fprintf(w, "ran\tpool %s, endpoint %s, attempts %d\n", r.Pool, cmp.Or(r.Endpoint, "-"), r.Attempts)
	fmt.Fprintf(w, "times\tstarted %s, queued %s, first token after %s, ended after %s\n",
		r.StartedAt.Format(time.RFC3339Nano), round(r.QueueTime), round(r.TTFT), round(r.Duration))
	fmt.Fprintf(w, "usage\t%s\n", describeSource(r.UsageSource))
	if t := r.CachedTiers; t != nil {
		fmt.Fprintf(w, "cached\t%d tokens in the accelerator's memory, %d in the host's, %d in storage\n",
			t.Device(r.Usage.InputCached), t.Host, t.Storage)
	}
	fmt.Fprintf(w, "settled\t%s by the %s, billing %s\n",
		r.SettledAt.Format(time.RFC3339Nano), cmp.Or(r.SettledBy, billing.ByGateway), cmp.Or(r.Mode, billing.ModeOff))
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range e.Ratings {
		if err := printRating(out, r, &e.Ratings[i], i > 0); err != nil {
			return err
		}
	}
	return nil
}

func describeSource(s billing.UsageSource) string {
	switch s {
	case billing.UpstreamFinal:
		return "as the engine counted at the end"
	case billing.UpstreamPartial:
		return "as the engine had counted when the exchange was cut"
	case billing.GatewayCount:
		return "as the gateway counted, with an estimate of the prompt"
	default:
		return "none: nothing reached an engine, or nothing is billed"
	}
}

func printRating(out io.Writer, r *billing.Settled, g *billing.Rating, again bool) error {
	fmt.Fprintln(out)
	if again {
		fmt.Fprintf(out, "rated again %s: ", g.At.UTC().Format(time.RFC3339))
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	if g.Bill != nil {
		printBill(out, w, g.Bill)
	} else {
		u := r.Usage
		fmt.Fprintf(out, "price version %d: %s\n", g.PriceVersion, g.Fault)
		fmt.Fprintf(out, "tokens: %d input_uncached, %d input_cached, %d output, %d reasoning\n", u.InputUncached, u.InputCached, u.Output, u.Reasoning)
		fmt.Fprintf(out, "cost %s USD\n", billing.FormatMoney(g.CostNano))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	booked := "not booked"
	if g.LedgerTxn != 0 {
		booked = fmt.Sprintf("booked as ledger transaction %d", g.LedgerTxn)
	}
	_, err := fmt.Fprintln(out, booked)
	return err
}

func printBill(out, columns io.Writer, b *billing.Bill) {
	whose := "the list"
	if b.Tenant != "" {
		whose = "the tenant's own"
	}
	long := ""
	if b.MinInput > 0 {
		long = fmt.Sprintf(", long context from %d input tokens on", b.MinInput)
	}
	fmt.Fprintf(out, "price version %d (%s), tier x%s%s\n", b.PriceVersion, whose, b.Multiplier, long)
	fmt.Fprintln(columns, "class\ttokens\tUSD/million\tUSD\t")
	for _, l := range b.Lines {
		fmt.Fprintf(columns, "%s\t%d\t%s\t%s\t\n", l.Class, l.Tokens, l.Rate, l.USD)
	}
	fmt.Fprintf(columns, "rounding\t\t\t%s\t\n", b.Rounding)
	fmt.Fprintf(columns, "cost\t\t\t%s\t\n", b.CostUSD)
	fmt.Fprintf(columns, "saved by caching\t\t\t%s\t\n", b.SavedUSD)
}
