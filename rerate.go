package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
	"weir/tenants"
)

// rerateBatch is how many receipts are rated, and corrected, in one transaction.
const rerateBatch = 500

func rerateCommand() *cobra.Command {
	var r rerun
	var tenant, from, to string
	cmd := &cobra.Command{
		Use:   "rerate --from TIME --to TIME",
		Short: "Rate receipts of a period again, show what differs, and with --apply correct it in the ledger",
		Long: `Rate the receipts that were settled in a period again, each at the price that the
book has for the moment when its request began, and show what differs. --apply books
the differences of what was paid for as new ledger transactions; receipts stay as they
are, and what is corrected already is not corrected twice. docs/billing.md says when
a rating can differ.`,
		Args: cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) (err error) {
			if r.filter.From, err = parseMoment(from); err != nil {
				return err
			}
			if r.filter.To, err = parseMoment(to); err != nil {
				return err
			}
			if !r.filter.From.Before(r.filter.To) {
				return errors.New("--from must be before --to")
			}
			r.management, r.run, r.filter.Limit = m, rand.Text(), rerateBatch
			r.note = cmp.Or(r.note, fmt.Sprintf("rated again by %s: %s to %s", m.actor, from, to))
			r.groups = make(map[rerateGroup]rerateSum)
			if err := r.tenants(cmd.Context(), tenants.ID(tenant)); err != nil {
				return err
			}
			return r.print(m.out)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "beginning of the period, such as 2026-11-01 or 2026-11-01T12:00:00Z (required)")
	f.StringVar(&to, "to", "", "its end, which it doesn't include (required)")
	f.StringVar(&tenant, "tenant", "", "only this tenant")
	f.StringVar(&r.model, "model", "", "only this model")
	f.BoolVar(&r.apply, "apply", false, "book the differences")
	f.StringVar(&r.note, "note", "", "why, for the ledger")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagRequired("to")
	return cmd
}

// parseMoment reads a time, or a day as its beginning by UTC.
func parseMoment(s string) (time.Time, error) {
	for _, form := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(form, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as 2026-11-01 or 2026-11-01T12:00:00Z", s)
}

// rerun is one run of the command.
type rerun struct {
	*management
	filter billing.Filter
	model  string
	apply  bool
	note   string
	run    string // in the refs of its corrections
	batch  int

	groups map[rerateGroup]rerateSum
	stored int64
	booked int64 // nano-USD, in the tenants' favour
}

// rerateGroup is a line of the table.
type rerateGroup struct {
	tenant   tenants.ID
	model    string
	was, now int64 // price versions; now is 0 where it can't be rated
	billed   bool
}

type rerateSum struct{ requests, was, now int64 }

// tenants works on one tenant, or on all.
func (r *rerun) tenants(ctx context.Context, only tenants.ID) error {
	if only != "" {
		return r.one(ctx, only)
	}
	const page = 500
	for after := tenants.ID(""); ; {
		some, err := tenants.ListTenants(ctx, r.worker, after, page)
		if err != nil {
			return err
		}
		for _, t := range some {
			if err := r.one(ctx, t.ID); err != nil {
				return err
			}
			after = t.ID
		}
		if len(some) < page {
			return nil
		}
	}
}

func (r *rerun) one(ctx context.Context, tenant tenants.ID) error {
	f := r.filter
	var book *billing.Book
	for {
		var differ []billing.Rerating
		var next billing.Cursor
		err := r.store.InTenant(ctx, tenant, func(tx pgx.Tx) (err error) {
			if book == nil {
				if book, err = billing.LoadBook(ctx, tx); err != nil {
					return err
				}
			}
			differ, next, err = billing.Reratings(ctx, tx, book, tenant, f)
			return err
		})
		if err != nil {
			return err
		}
		if r.model != "" {
			differ = slices.DeleteFunc(differ, func(g billing.Rerating) bool { return g.Receipt.Model != r.model })
		}
		if err := r.page(ctx, tenant, differ); err != nil {
			return err
		}
		if f.After = next; next == (billing.Cursor{}) {
			return nil
		}
	}
}

// page counts what differs, and corrects it where that is asked for.
func (r *rerun) page(ctx context.Context, tenant tenants.ID, differ []billing.Rerating) error {
	for i := range differ {
		g := &differ[i]
		at := rerateGroup{tenant, g.Receipt.Model, g.WasVersion, g.Version, g.Billed()}
		sum := r.groups[at]
		sum.requests, sum.was, sum.now = sum.requests+1, sum.was+g.WasNano, sum.now+g.WasNano-g.DifferenceNano()
		r.groups[at] = sum
	}
	if !r.apply {
		return nil
	}
	r.batch++
	stored, amount, err := billing.ApplyReratings(ctx, r.worker, tenant, differ, fmt.Sprintf("rerate:%s:%d", r.run, r.batch), r.note)
	r.stored, r.booked = r.stored+stored, r.booked+amount
	return err
}

func (r *rerun) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tMODEL\tVERSION\tREQUESTS\tWAS USD\tIS USD\tDIFFERENCE\tPAID FOR")
	paid := map[bool]string{true: "yes", false: "no"}
	order := func(a, b rerateGroup) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.model, b.model), cmp.Compare(a.was, b.was),
			cmp.Compare(a.now, b.now), cmp.Compare(paid[a.billed], paid[b.billed]))
	}
	for _, g := range slices.SortedFunc(maps.Keys(r.groups), order) {
		sum, version := r.groups[g], fmt.Sprintf("%d -> %d", g.was, g.now)
		if g.now == 0 {
			version = fmt.Sprintf("%d, can't be rated", g.was)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", g.tenant, g.model, version, sum.requests,
			billing.FormatMoney(sum.was), billing.FormatMoney(sum.now), billing.FormatMoney(sum.was-sum.now), paid[g.billed])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	last := "nothing was changed: --apply books the differences of what was paid for"
	if r.apply {
		last = fmt.Sprintf("%d receipts corrected, %s USD booked in the tenants' favour", r.stored, billing.FormatMoney(r.booked))
	}
	_, err := fmt.Fprintln(out, last)
	return err
}
