package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"weir/tenants"
)

// limitFlags are those of each command that sets limits; what is left out is
// the plan's.
func limitFlags(cmd *cobra.Command, l *tenants.Limits) {
	f := cmd.Flags()
	f.IntVar(&l.RequestsPerMinute, "rpm", 0, "requests a minute (default: the plan's)")
	f.IntVar(&l.TokensPerMinute, "tpm", 0, "tokens a minute, but for cached ones (default: the plan's)")
	f.IntVar(&l.UncachedTokensPerMinute, "uncached-tpm", 0, "uncached tokens of prompts a minute (default: the plan's)")
	f.IntVar(&l.OutputTokensPerMinute, "output-tpm", 0, "tokens of output a minute (default: the plan's)")
	f.IntVar(&l.Concurrency, "concurrency", 0, "requests at once (default: the plan's)")
}

func modelLimitsCommand() *cobra.Command {
	var l tenants.Limits
	cmd := &cobra.Command{
		Use:   "limit-model TENANT MODEL",
		Short: "Limit a tenant's use of a model; without limits, as its plan does",
		Args:  cobra.ExactArgs(2),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			if err := m.store.SetModelLimits(cmd.Context(), m.actor, tenants.ID(args[0]), args[1], l); err != nil {
				return err
			}
			_, err := fmt.Fprintf(m.out, "%s at %s: %s\n", args[0], args[1], limitsText(l))
			return err
		}),
	}
	limitFlags(cmd, &l)
	return cmd
}

func projectCommand() *cobra.Command {
	root := &cobra.Command{Use: "project", Short: "Create, list and limit a tenant's projects"}
	var tenant string
	root.PersistentFlags().StringVar(&tenant, "tenant", "", "whose projects")
	var l tenants.Limits
	limit := &cobra.Command{
		Use:   "limit PROJECT",
		Short: "Give a project limits of its own; without limits, those of the plan",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			if err := m.store.SetProjectLimits(cmd.Context(), m.actor, id, tenants.ProjectID(args[0]), l); err != nil {
				return err
			}
			_, err = fmt.Fprintf(m.out, "%s: %s\n", args[0], limitsText(l))
			return err
		}),
	}
	limitFlags(limit, &l)
	root.AddCommand(limit, &cobra.Command{
		Use:   "create NAME",
		Short: "Add a project to a tenant",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			p, err := m.store.CreateProject(cmd.Context(), m.actor, id, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(m.out, "%s (%s)\n", p.ID, p.Name)
			return err
		}),
	}, &cobra.Command{
		Use:   "list",
		Short: "List a tenant's projects, oldest first",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			projects, err := m.store.ListProjects(cmd.Context(), id)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(m.out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tCREATED\tLIMITS")
			for _, p := range projects {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.ID, p.Name, day(p.CreatedAt), limitsText(p.Limits))
			}
			return w.Flush()
		}),
	})
	return root
}

// limitsText is limits in words.
func limitsText(l tenants.Limits) string {
	var parts []string
	for _, part := range [...]struct {
		n    int
		name string
	}{
		{l.RequestsPerMinute, "requests/min"},
		{l.TokensPerMinute, "tokens/min"},
		{l.UncachedTokensPerMinute, "uncached tokens/min"},
		{l.OutputTokensPerMinute, "output tokens/min"},
		{l.Concurrency, "at once"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.name))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "as the plan says")
}
