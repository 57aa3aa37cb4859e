package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
	"weir/tenants"
)

func walletCommand() *cobra.Command {
	root := &cobra.Command{Use: "wallet", Short: "Show and set what tenants, projects and keys may spend"}
	root.AddCommand(walletListCommand(), walletShowCommand(), walletSetCommand())
	return root
}

func walletListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the wallets of all tenants",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			w := m.walletTable()
			const page = 500
			for after := (billing.Wallet{}); ; {
				some, err := billing.ListWallets(cmd.Context(), m.worker, after, page)
				if err != nil {
					return err
				}
				for _, after = range some {
					walletRow(w, after)
				}
				if len(some) < page {
					return w.Flush()
				}
			}
		}),
	}
}

// maxLots is how many credits `weir wallet show` prints.
const maxLots = 50

func walletShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show TENANT",
		Short: "Show a tenant's wallets and credit",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id := tenants.ID(args[0])
			mode, kind, err := m.store.BillingOf(cmd.Context(), id)
			if err != nil {
				return err
			}
			var wallets []billing.Wallet
			var lots []billing.Lot
			err = m.store.InTenant(cmd.Context(), id, func(tx pgx.Tx) (err error) {
				if wallets, err = billing.Wallets(cmd.Context(), tx, args[0]); err == nil {
					lots, err = billing.Lots(cmd.Context(), tx, args[0], maxLots)
				}
				return err
			})
			if err != nil {
				return err
			}
			if mode == "" {
				mode = "the default (billing_mode)"
			}
			fmt.Fprintf(m.out, "%s, billing %s\n\n", kind, mode)
			w := m.walletTable()
			for _, one := range wallets {
				walletRow(w, one)
			}
			if len(lots) > 0 {
				fmt.Fprintln(w, "\nCREDIT\tKIND\tUSD\tLEFT\tEFFECTIVE\tEXPIRES\tREF")
			}
			for _, l := range lots {
				expires := "never"
				if l.ExpiresAt != nil {
					expires = day(*l.ExpiresAt)
				}
				fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", l.ID, l.Kind,
					billing.FormatMoney(l.Nano), billing.FormatMoney(l.RemainingNano), day(l.EffectiveAt), expires, l.Ref)
			}
			return w.Flush()
		}),
	}
}

func (m *management) walletTable() *tabwriter.Writer {
	w := tabwriter.NewWriter(m.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tWALLET\tSCOPE\tBALANCE USD\tHELD\tCREDIT LIMIT")
	return w
}

func walletRow(w *tabwriter.Writer, one billing.Wallet) {
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", one.Tenant, one.Node, one.Scope,
		billing.FormatMoney(one.BalanceNano), billing.FormatMoney(one.HeldNano), billing.FormatMoney(one.CreditLimitNano))
}

// walletChange is what the flags of `weir wallet set` say.
type walletChange struct {
	project, key             string
	mode, kind               string
	creditLimit, amount, add string
	lift                     bool
}

func walletSetCommand() *cobra.Command {
	var c walletChange
	cmd := &cobra.Command{
		Use:   "set TENANT",
		Short: "Set how a tenant pays and what it may owe, or cap a project or a key",
		Long: `Without --project and --key: set how the tenant pays (--mode, --kind) and what it may
owe (--credit-limit). Its money comes and goes by ` + "`weir credit`" + ` and the ledger alone.

With one of them: cap what the project or the key may spend of the tenant's money.
--amount sets what is left, --add tops it up, --lift removes the cap.`,
		Args: cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			if _, err := m.store.Tenant(cmd.Context(), tenants.ID(args[0])); err != nil {
				return err
			}
			set := m.setTenantWallet
			if c.project != "" || c.key != "" {
				set = m.setCap
			}
			if err := set(cmd, args[0], c); err != nil {
				return err
			}
			_, err := fmt.Fprintf(m.out, "%s: set\n", args[0])
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&c.project, "project", "", "cap this project (prj_...)")
	f.StringVar(&c.key, "key", "", "cap this key (key_...)")
	f.StringVar(&c.amount, "amount", "", "USD that the project or key has left")
	f.StringVar(&c.add, "add", "", "USD more that the project or key has left")
	f.BoolVar(&c.lift, "lift", false, "remove the cap of the project or key")
	f.StringVar(&c.mode, "mode", "", "off, shadow or enforce; default: what the installation sets")
	f.StringVar(&c.kind, "kind", "", "prepaid or postpaid")
	f.StringVar(&c.creditLimit, "credit-limit", "", "USD that the tenant may owe")
	cmd.MarkFlagsMutuallyExclusive("project", "key")
	cmd.MarkFlagsMutuallyExclusive("amount", "lift")
	cmd.MarkFlagsMutuallyExclusive("add", "lift")
	cmd.MarkFlagsOneRequired("amount", "add", "lift", "mode", "kind", "credit-limit")
	return cmd
}

func (m *management) setTenantWallet(cmd *cobra.Command, tenant string, c walletChange) error {
	if c.amount != "" || c.add != "" || c.lift {
		return errors.New("--amount, --add and --lift are for a --project or a --key; a tenant's money comes from `weir credit`")
	}
	var mode, kind *string
	switch billing.Mode(c.mode) {
	case "":
	case "default":
		mode = new("")
	case billing.ModeOff, billing.ModeShadow, billing.ModeEnforce:
		mode = &c.mode
	default:
		return fmt.Errorf("--mode %q: it is off, shadow, enforce or default", c.mode)
	}
	switch c.kind {
	case "":
	case "prepaid", "postpaid":
		kind = &c.kind
	default:
		return fmt.Errorf("--kind %q: it is prepaid or postpaid", c.kind)
	}
	if mode != nil || kind != nil {
		if err := m.store.SetBilling(cmd.Context(), m.actor, tenants.ID(tenant), mode, kind); err != nil {
			return err
		}
	}
	if c.creditLimit == "" {
		return nil
	}
	nano, err := billing.ParseNano(c.creditLimit)
	if err != nil {
		return fmt.Errorf("--credit-limit: %w", err)
	}
	return billing.SetCreditLimit(cmd.Context(), m.worker, tenant, nano)
}

func (m *management) setCap(cmd *cobra.Command, tenant string, c walletChange) error {
	if c.mode != "" || c.kind != "" || c.creditLimit != "" {
		return errors.New("--mode, --kind and --credit-limit are the tenant's: leave --project and --key out")
	}
	a := billing.Allotment{Tenant: tenant, Node: c.project, Scope: "project"}
	if c.key != "" {
		a.Node, a.Scope = c.key, "key"
	}
	if err := m.known(cmd, a); err != nil {
		return err
	}
	if c.lift {
		lifted, err := billing.LiftCap(cmd.Context(), m.worker, tenant, a.Node)
		if err == nil && !lifted {
			err = fmt.Errorf("%s has no cap", a.Node)
		}
		return err
	}
	if c.amount != "" {
		nano, err := billing.ParseNano(c.amount)
		if err != nil {
			return fmt.Errorf("--amount: %w", err)
		}
		a.SetNano = &nano
	}
	if c.add != "" {
		var err error
		if a.AddNano, err = billing.ParseNano(c.add); err != nil {
			return fmt.Errorf("--add: %w", err)
		}
	}
	_, err := billing.Allot(cmd.Context(), m.worker, a)
	return err
}

// known refuses to cap what the tenant doesn't have: a wallet of a mistyped id
// would cap nothing.
func (m *management) known(cmd *cobra.Command, a billing.Allotment) error {
	table := map[string]string{"project": "projects", "key": "keys"}[a.Scope]
	var there bool
	err := m.store.InTenant(cmd.Context(), tenants.ID(a.Tenant), func(tx pgx.Tx) error {
		return tx.QueryRow(cmd.Context(), `SELECT EXISTS (SELECT FROM `+table+` WHERE tenant_id = $1 AND id = $2)`, a.Tenant, a.Node).Scan(&there)
	})
	if err == nil && !there {
		err = fmt.Errorf("%s has no %s %s", a.Tenant, a.Scope, a.Node)
	}
	return err
}
