package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
	"weir/tenants"
)

func priceListCommand(tenant *string) *cobra.Command {
	var model string
	var past bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show what is in effect and what is to come",
		Args:  cobra.NoArgs,
		RunE: priced(tenant, func(ctx context.Context, p pricing, _ []string) error {
			var book *billing.Book
			err := p.begin(ctx, func(tx pgx.Tx) (err error) {
				book, err = billing.LoadBook(ctx, tx)
				return err
			})
			if err != nil {
				return err
			}
			return printPrices(p.out, book, p.tenant, model, past, time.Now())
		}),
	}
	cmd.Flags().StringVar(&model, "model", "", "only this model")
	cmd.Flags().BoolVar(&past, "past", false, "also what is no longer in effect")
	return cmd
}

func printPrices(out io.Writer, book *billing.Book, tenant tenants.ID, model string, past bool, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "VERSION\tMODEL\tWHOSE\tFROM\tINPUT\tCACHED\tOUTPUT\tREASONING\tFLEX\tPRIORITY\tBATCH\tBACKGROUND\tINPUT TOKENS")
	for _, p := range book.Since(nil) {
		if model != "" && p.Model != model || p.Tenant != "" && p.Tenant != tenant {
			continue
		}
		if current, ok := book.InEffect(p.Model, p.Tenant, now); !past && !p.EffectiveFrom.After(now) && (!ok || current.Version != p.Version) {
			continue
		}
		whose := "list"
		if p.Tenant != "" {
			whose = string(p.Tenant)
		}
		head := fmt.Sprintf("%d\t%s\t%s\t%s", p.Version, p.Model, whose, p.EffectiveFrom.UTC().Format(time.DateTime))
		if p.Lapsed {
			fmt.Fprintln(w, head+"\tas the list\t\t\t\t\t\t\t\t")
			continue
		}
		t := p.Spec().Tiers
		tiers := strings.Join([]string{t[tenants.TierFlex], t[tenants.TierPriority], t[tenants.TierBatch], t[tenants.TierBackground]}, "\t")
		fmt.Fprintf(w, "%s\t%s\t%s\tany\n", head, rateColumns(p.Rates), tiers)
		for _, s := range p.Long {
			fmt.Fprintf(w, "\t\t\t\t%s\t\t\t\t\tfrom %d\n", rateColumns(s.Rates), s.MinInput)
		}
	}
	return w.Flush()
}

func rateColumns(r billing.Rates) string {
	return strings.Join([]string{
		billing.FormatUSD(r.Input), billing.FormatUSD(r.CachedInput), billing.FormatUSD(r.Output), billing.FormatUSD(r.Reasoning),
	}, "\t")
}
