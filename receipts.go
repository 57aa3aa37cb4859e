package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
)

func receiptsCommand() *cobra.Command {
	var (
		tenant, request string
		since           time.Duration
		limit           int
		asJSON          bool
	)
	cmd := &cobra.Command{
		Use:   "receipts",
		Short: "Show what a tenant's requests used and cost, newest first",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			filter := billing.Filter{RequestID: request, Limit: limit}
			if since > 0 {
				filter.From = time.Now().Add(-since)
			}
			var page billing.Page
			err = m.store.InTenant(cmd.Context(), id, func(tx pgx.Tx) (err error) {
				page, err = billing.Receipts(cmd.Context(), tx, string(id), filter)
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				for _, r := range page.Receipts {
					if err := json.NewEncoder(m.out).Encode(r); err != nil {
						return err
					}
				}
				return nil
			}
			return printReceipts(m.out, page)
		}),
	}
	cmd.AddCommand(receiptShowCommand())
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "whose receipts")
	f.StringVar(&request, "request", "", "only this request id (the x-request-id header)")
	f.DurationVar(&since, "since", 0, "only the last while, such as 1h")
	f.IntVar(&limit, "limit", 20, "how many at most, up to 1000")
	f.BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

func printReceipts(out io.Writer, page billing.Page) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SETTLED\tREQUEST\tMODEL\tBAND\tIN\tCACHED\tOUT\tREASONING\tUSD\tQUEUE\tTTFT\tTOTAL\tOUTCOME")
	for _, r := range page.Receipts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d.%09d\t%s\t%s\t%s\t%s\n",
			r.SettledAt.UTC().Format(time.DateTime), r.RequestID, r.Model, r.Band,
			r.Usage.InputUncached, r.Usage.InputCached, r.Usage.Output, r.Usage.Reasoning,
			r.CostNano/1e9, r.CostNano%1e9,
			r.QueueTime.Round(time.Millisecond), r.TTFT.Round(time.Millisecond), r.Duration.Round(time.Millisecond), r.Outcome)
	}
	if page.Next != (billing.Cursor{}) {
		fmt.Fprintln(w, "... and older ones (--limit)")
	}
	return w.Flush()
}
