package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"weir/billing"
	"weir/gateway/catalogue"
	"weir/tenants"
)

// pricing is whose prices a command is about: a tenant's own, or the list's.
type pricing struct {
	*management
	tenant tenants.ID
}

// priced wraps a command about prices.
func priced(tenant *string, work func(ctx context.Context, p pricing, args []string) error) func(*cobra.Command, []string) error {
	return managed(func(cmd *cobra.Command, m *management, args []string) error {
		return work(cmd.Context(), pricing{m, tenants.ID(*tenant)}, args)
	})
}

// begin runs work in a transaction of the tenant's, or of nobody's.
func (p pricing) begin(ctx context.Context, work func(pgx.Tx) error) error {
	if p.tenant == "" {
		return pgx.BeginFunc(ctx, p.app, work)
	}
	return p.store.InTenant(ctx, p.tenant, work)
}

func priceCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "price",
		Short: "List prices; draft, compare and publish new ones, of the list or of one tenant",
		Long: `List prices; draft, compare and publish new ones, of the list or, with --tenant, of
one tenant, whose own prices go before the list's. A published price is never changed:
another one is a new version, from now on or from a time to come. docs/billing.md says
what a price can be. Prices of the list can also stand in the catalogue (weir apply).`,
	}
	var tenant string
	root.PersistentFlags().StringVar(&tenant, "tenant", "", "the prices of this tenant's own; without it, the list's")
	root.AddCommand(
		priceListCommand(&tenant), priceDraftCommand(&tenant), priceDiffCommand(&tenant),
		pricePublishCommand(&tenant), priceDropCommand(&tenant),
	)
	return root
}

func priceDraftCommand(tenant *string) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "draft -f prices.yaml",
		Short: "Keep prices for a later publish, in place of their models' drafts, and show what they would change",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "a catalogue's file that has prices: alone; - reads standard input (required)")
	_ = cmd.MarkFlagRequired("file")
	cmd.RunE = priced(tenant, func(ctx context.Context, p pricing, _ []string) error {
		raw, err := readDocument(file, cmd.InOrStdin())
		if err != nil {
			return err
		}
		doc, _, err := catalogue.Parse(raw)
		if err != nil {
			return err
		}
		if len(doc.Prices) == 0 || len(doc.Models)+len(doc.Pools)+len(doc.Bands)+len(doc.Plans) > 0 {
			return errors.New("a draft has prices: and nothing else")
		}
		return p.begin(ctx, func(tx pgx.Tx) error {
			if err := catalogue.CheckPrices(ctx, tx, doc.Prices); err != nil {
				return err
			}
			if err := billing.PutDrafts(ctx, tx, p.tenant, p.actor, doc.Prices); err != nil {
				return err
			}
			return p.printPlan(ctx, tx, doc.Prices)
		})
	})
	return cmd
}

func (p pricing) printPlan(ctx context.Context, tx pgx.Tx, specs []billing.PriceSpec) error {
	changes, err := billing.PlanPrices(ctx, tx, p.tenant, specs)
	if err != nil {
		return err
	}
	return p.print(changes)
}

func (p pricing) print(changes []billing.PriceChange) error {
	if len(changes) == 0 {
		_, err := fmt.Fprintln(p.out, "no changes")
		return err
	}
	for _, c := range changes {
		if _, err := fmt.Fprintln(p.out, c); err != nil {
			return err
		}
	}
	return nil
}

func priceDiffCommand(tenant *string) *cobra.Command {
	return &cobra.Command{
		Use:   "diff",
		Short: "Show what publishing the drafts would change",
		Args:  cobra.NoArgs,
		RunE: priced(tenant, func(ctx context.Context, p pricing, _ []string) error {
			return p.begin(ctx, func(tx pgx.Tx) error {
				specs, _, err := p.drafts(ctx, tx, nil)
				if err != nil {
					return err
				}
				return p.printPlan(ctx, tx, specs)
			})
		}),
	}
}

// drafts are those of the given models, or all.
func (p pricing) drafts(ctx context.Context, tx pgx.Tx, models []string) (specs []billing.PriceSpec, names []string, err error) {
	all, err := billing.Drafts(ctx, tx, p.tenant)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range all {
		if len(models) == 0 || slices.Contains(models, d.Spec.Model) {
			specs, names = append(specs, d.Spec), append(names, d.Spec.Model)
		}
	}
	for _, m := range models {
		if !slices.Contains(names, m) {
			return nil, nil, fmt.Errorf("model %s has no draft", m)
		}
	}
	return specs, names, nil
}

func pricePublishCommand(tenant *string) *cobra.Command {
	return &cobra.Command{
		Use:   "publish [MODEL...]",
		Short: "Publish the drafts, of the given models or all, and show what that changed; running replicas follow at once",
		RunE: priced(tenant, func(ctx context.Context, p pricing, models []string) error {
			return p.begin(ctx, func(tx pgx.Tx) error {
				specs, names, err := p.drafts(ctx, tx, models)
				if err != nil {
					return err
				}
				changes, err := catalogue.PublishPrices(ctx, tx, p.tenant, specs)
				if err != nil {
					return err
				}
				if _, err := billing.DropDrafts(ctx, tx, p.tenant, names); err != nil {
					return err
				}
				for _, c := range changes {
					if p.tenant == "" {
						break
					}
					err := tenants.Audit(ctx, tx, p.tenant, p.actor, "price.publish", c.Model, map[string]any{"version": c.Version})
					if err != nil {
						return err
					}
				}
				return p.print(changes)
			})
		}),
	}
}

func priceDropCommand(tenant *string) *cobra.Command {
	return &cobra.Command{
		Use:   "drop MODEL...",
		Short: "Remove drafts that are not to be published",
		Args:  cobra.MinimumNArgs(1),
		RunE: priced(tenant, func(ctx context.Context, p pricing, models []string) error {
			return p.begin(ctx, func(tx pgx.Tx) error {
				n, err := billing.DropDrafts(ctx, tx, p.tenant, models)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.out, "%d drafts removed\n", n)
				return err
			})
		}),
	}
}
