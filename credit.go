package main

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir/billing"
	"weir/tenants"
)

func creditCommand() *cobra.Command {
	var c billing.Credit
	var effective, expires string
	cmd := &cobra.Command{
		Use:   "credit TENANT AMOUNT",
		Short: "Give a tenant credit in USD: paid, promotional or free",
		Long: `Give a tenant credit in USD, such as 25 or 0.50. With --ref it happens once: the same
command again changes nothing. Free credit is used up first, then promotional, then paid;
within each what expires first. Of paid credit, what the tenant owes is paid first.`,
		Args: cobra.ExactArgs(2),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) (err error) {
			if _, err = m.store.Tenant(cmd.Context(), tenants.ID(args[0])); err != nil {
				return err
			}
			c.Tenant = args[0]
			if c.Nano, err = billing.ParseNano(args[1]); err != nil {
				return err
			}
			if c.EffectiveAt, err = parseSpan(effective); err != nil {
				return fmt.Errorf("--effective: %w", err)
			}
			if c.ExpiresAt, err = parseSpan(expires); err != nil {
				return fmt.Errorf("--expires: %w", err)
			}
			if c.Ref == "" {
				c.Ref = "credit:" + rand.Text()
			}
			if c.Note == "" {
				c.Note = m.actor
			}
			given, err := billing.GiveCredit(cmd.Context(), m.worker, c)
			if err != nil {
				return err
			}
			return m.report(c, given)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&c.Kind, "kind", billing.CreditPaid, "free, promo or paid")
	f.StringVar(&c.Ref, "ref", "", "what it is for, unique to the tenant: an invoice, a payment")
	f.StringVar(&c.Note, "note", "", "kept beside it; by default who gave it")
	f.StringVar(&effective, "effective", "", "when it takes effect: a time such as 2027-01-01T00:00:00Z, or a while such as 24h; by default now")
	f.StringVar(&expires, "expires", "", "when it expires, likewise; by default never")
	return cmd
}

func (m *management) report(c billing.Credit, given billing.Given) error {
	state := "booked as transaction " + fmt.Sprint(given.Txn)
	switch {
	case given.Txn == 0:
		state = "takes effect " + day(c.EffectiveAt)
	case !given.Created:
		state = "was booked before, as transaction " + fmt.Sprint(given.Txn)
	}
	_, err := fmt.Fprintf(m.out, "credit %d of %s: %s USD %s (ref %s), %s\n",
		given.Lot, c.Tenant, billing.FormatMoney(c.Nano), c.Kind, c.Ref, state)
	return err
}

// parseSpan reads a time, a day, or a while from now. Nothing is the zero time.
func parseSpan(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return time.Now().Add(d), nil
	}
	t, err := parseMoment(s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w, or a while such as 24h", err)
	}
	return t, nil
}
