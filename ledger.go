package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
	"weir/tenants"
)

func ledgerCommand() *cobra.Command {
	root := &cobra.Command{Use: "ledger", Short: "Show, check and correct what was booked"}
	root.AddCommand(ledgerListCommand(), ledgerShowCommand(), ledgerAdjustCommand(), ledgerReverseCommand(),
		ledgerCheckCommand(), ledgerRebuildCommand())
	return root
}

func ledgerListCommand() *cobra.Command {
	var tenant string
	var before int64
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List a tenant's ledger, newest first",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			var txns []billing.Transaction
			err = m.store.InTenant(cmd.Context(), id, func(tx pgx.Tx) (err error) {
				txns, err = billing.Transactions(cmd.Context(), tx, string(id), before, limit)
				return err
			})
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(m.out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "TRANSACTION\tBOOKED\tKIND\tUSD\tREVERSES\tREF\tNOTE")
			for _, t := range txns {
				fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.BookedAt.UTC().Format(time.DateTime), t.Kind,
					billing.FormatMoney(t.Nano), orDash(t.Reverses), t.Ref, t.Note)
			}
			return w.Flush()
		}),
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "whose ledger")
	f.Int64Var(&before, "before", 0, "those before this transaction")
	f.IntVar(&limit, "limit", 50, "how many at most")
	return cmd
}

func orDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func ledgerShowCommand() *cobra.Command {
	var tenant string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show TRANSACTION",
		Short: "Show a transaction's lines, and the requests that it sums up",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			txn, err := transactionID(args[0])
			if err != nil {
				return err
			}
			var b billing.Booking
			err = m.store.InTenant(cmd.Context(), id, func(tx pgx.Tx) (err error) {
				b, err = billing.LoadBooking(cmd.Context(), tx, string(id), txn)
				return err
			})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(m.out).Encode(b)
			}
			return printBooking(m.out, b)
		}),
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "whose ledger")
	cmd.Flags().BoolVar(&asJSON, "json", false, "as one JSON object")
	return cmd
}

func transactionID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id <= 0 {
		return 0, fmt.Errorf("%q is no transaction: `weir ledger list` shows their numbers", s)
	}
	return id, nil
}

func printBooking(out io.Writer, b billing.Booking) error {
	fmt.Fprintf(out, "transaction %d, %s, %s\n", b.ID, b.Kind, b.BookedAt.UTC().Format(time.RFC3339Nano))
	if b.Ref != "" || b.Note != "" {
		fmt.Fprintf(out, "ref %s, note %s\n", b.Ref, b.Note)
	}
	if b.Reverses != 0 {
		fmt.Fprintf(out, "reverses transaction %d\n", b.Reverses)
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\nACCOUNT\tCREDIT\tUSD")
	for _, e := range b.Entries {
		fmt.Fprintf(w, "%s\t%s\t%s\n", e.Account, orDash(e.Lot), billing.FormatMoney(e.Nano))
	}
	if len(b.Receipts) > 0 {
		fmt.Fprintln(w, "\nREQUEST\tKEY\tMODEL\tTIER\tPRICE\tIN\tCACHED\tOUT\tREASONING\tUSD")
	}
	for _, r := range b.Receipts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", r.RequestID, r.Key, r.Model, r.Tier, r.PriceVersion,
			r.Usage.InputUncached, r.Usage.InputCached, r.Usage.Output, r.Usage.Reasoning, billing.FormatMoney(r.CostNano))
	}
	if b.More {
		fmt.Fprintln(w, "... and more")
	}
	if len(b.Corrections) > 0 {
		fmt.Fprintln(w, "\nRATED AGAIN\tPRICE\tUSD")
	}
	for _, c := range b.Corrections {
		fmt.Fprintf(w, "%s\t%d\t%s\n", c.RequestID, c.PriceVersion, billing.FormatMoney(c.CostNano))
	}
	return w.Flush()
}

func ledgerAdjustCommand() *cobra.Command {
	var kind, ref, note string
	cmd := &cobra.Command{
		Use:   "adjust TENANT AMOUNT",
		Short: "Book a correction in USD: a positive amount is in the tenant's favour",
		Long: `Book a correction in USD (put -- before a negative amount). Nothing is edited: it is a
new transaction. Of --kind adjust it corrects what usage cost; a refund is a negative
amount of paid credit that was paid back, a writeoff a positive one of a debt forgiven.`,
		Args: cobra.ExactArgs(2),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			if _, err := m.store.Tenant(cmd.Context(), tenants.ID(args[0])); err != nil {
				return err
			}
			nano, err := billing.ParseNano(args[1])
			if err != nil {
				return err
			}
			if note == "" {
				note = m.actor
			}
			txn, err := billing.Adjust(cmd.Context(), m.worker, args[0], kind, nano, ref, note)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(m.out, "booked as transaction %d\n", txn)
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", billing.Adjustment, "adjust, refund or writeoff")
	f.StringVar(&ref, "ref", "", "what it is for, unique to the tenant: it happens once (required)")
	f.StringVar(&note, "note", "", "kept beside it; by default who booked it")
	_ = cmd.MarkFlagRequired("ref")
	return cmd
}

func ledgerReverseCommand() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:   "reverse TENANT TRANSACTION",
		Short: "Book the opposite of a transaction, once",
		Args:  cobra.ExactArgs(2),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id, err := transactionID(args[1])
			if err != nil {
				return err
			}
			if note == "" {
				note = m.actor
			}
			txn, err := billing.Reverse(cmd.Context(), m.worker, args[0], id, note)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(m.out, "booked as transaction %d\n", txn)
			return err
		}),
	}
	cmd.Flags().StringVar(&note, "note", "", "kept beside it; by default who booked it")
	return cmd
}

// period is what --from and --to say.
type period struct{ from, to string }

func (p *period) flags(cmd *cobra.Command, from string) {
	cmd.Flags().StringVar(&p.from, "from", from, "from when: a time such as 2027-01-01T00:00:00Z, or a while ago such as -24h")
	cmd.Flags().StringVar(&p.to, "to", "0s", "until when, likewise")
}

func (p *period) parse() (from, to time.Time, err error) {
	if from, err = parseSpan(p.from); err != nil {
		return from, to, fmt.Errorf("--from: %w", err)
	}
	if to, err = parseSpan(p.to); err != nil {
		return from, to, fmt.Errorf("--to: %w", err)
	}
	if !from.Before(to) {
		return from, to, fmt.Errorf("from %s to %s is no time", p.from, p.to)
	}
	return from, to, nil
}

func ledgerCheckCommand() *cobra.Command {
	var p period
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look whether balances, credit, receipts and sums agree; fails where they don't",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			from, to, err := p.parse()
			if err != nil {
				return err
			}
			faults, err := billing.NewBooks(slog.New(slog.DiscardHandler), m.worker, nil).Check(cmd.Context(), from, to)
			if err != nil {
				return err
			}
			if len(faults) == 0 {
				_, err = fmt.Fprintln(m.out, "all rules hold: entries, balance, credit, receivable, held, usage, receipts, hours")
				return err
			}
			w := tabwriter.NewWriter(m.out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "RULE\tTENANT\tSUBJECT\tEXPECTED USD\tFOUND")
			for _, f := range faults {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Rule, f.Tenant, f.Subject, billing.FormatMoney(f.ExpectedNano), billing.FormatMoney(f.FoundNano))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			return fmt.Errorf("the ledger breaks its rules %d times (docs/billing.md)", len(faults))
		}),
	}
	p.flags(cmd, "-48h")
	return cmd
}

func ledgerRebuildCommand() *cobra.Command {
	var p period
	cmd := &cobra.Command{
		Use:   "rebuild-hours",
		Short: "Make the hourly sums of usage again from receipts",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			from, to, err := p.parse()
			if err != nil {
				return err
			}
			wrong, err := billing.RebuildHours(cmd.Context(), m.worker, from, to)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(m.out, "%d sums were wrong\n", wrong)
			return err
		}),
	}
	p.flags(cmd, "")
	_ = cmd.MarkFlagRequired("from")
	return cmd
}
