package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"weir/tenants"
)

// management is what the commands for tenants and keys work with.
type management struct {
	cfg         *Config
	app, worker *pgxpool.Pool
	store       *tenants.Store
	actor       string
	out         io.Writer
}

// managed wraps a command that works on the database.
func managed(work func(cmd *cobra.Command, m *management, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cfg, err := configuration(cmd)
		if err != nil {
			return err
		}
		app, worker, err := openPools(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		defer app.Close()
		defer worker.Close()
		m := &management{
			cfg: cfg, app: app, worker: worker, out: cmd.OutOrStdout(),
			store: tenants.NewStore(app, cfg.Peppers, time.Now),
			actor: "operator:" + cmp.Or(os.Getenv("SUDO_USER"), os.Getenv("USER"), "unknown"), //nolint:forbidigo // who sits at the keyboard, for the audit
		}
		return work(cmd, m, args)
	}
}

// tenant is the one that --tenant names, or the configuration.
func (m *management) tenant(flag string) (tenants.ID, error) {
	id := tenants.ID(cmp.Or(flag, m.cfg.Tenant))
	if id == "" {
		return "", errors.New("which tenant? Give --tenant ten_... (`weir tenant list` shows them) or set WEIR_TENANT")
	}
	return id, nil
}

func tenantCommand() *cobra.Command {
	root := &cobra.Command{Use: "tenant", Short: "Create, list, suspend and move tenants"}
	var plan string
	var quiet bool
	create := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a tenant and its default project",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			t, p, err := m.store.CreateTenant(cmd.Context(), m.actor, args[0], plan)
			if err != nil {
				return err
			}
			if quiet {
				_, err = fmt.Fprintln(m.out, t.ID)
				return err
			}
			_, err = fmt.Fprintf(m.out, "tenant  %s (%s, plan %s)\nproject %s (%s)\n", t.ID, t.Name, t.Plan, p.ID, p.Name)
			return err
		}),
	}
	create.Flags().StringVar(&plan, "plan", "", "plan that it bought (required)")
	create.Flags().BoolVar(&quiet, "quiet", false, "print the id alone")
	_ = create.MarkFlagRequired("plan")

	list := &cobra.Command{
		Use:   "list",
		Short: "List the tenants, oldest first",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			w := tabwriter.NewWriter(m.out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tPLAN\tCREATED\tSTATE")
			const page = 500
			for after := tenants.ID(""); ; {
				some, err := tenants.ListTenants(cmd.Context(), m.worker, after, page)
				if err != nil {
					return err
				}
				for _, t := range some {
					state := "active"
					if !t.SuspendedAt.IsZero() {
						state = "suspended " + day(t.SuspendedAt)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, t.Name, t.Plan, day(t.CreatedAt), state)
					after = t.ID
				}
				if len(some) < page {
					return w.Flush()
				}
			}
		}),
	}
	root.AddCommand(create, list,
		tenantChange("suspend", "Stop all keys of a tenant and end their running requests", func(cmd *cobra.Command, m *management, id tenants.ID, _ []string) error {
			return m.store.Suspend(cmd.Context(), m.actor, id)
		}),
		tenantChange("resume", "Let a suspended tenant's keys work again", func(cmd *cobra.Command, m *management, id tenants.ID, _ []string) error {
			return m.store.Resume(cmd.Context(), m.actor, id)
		}),
		tenantChange("plan", "Move a tenant to another plan", func(cmd *cobra.Command, m *management, id tenants.ID, rest []string) error {
			return m.store.SetPlan(cmd.Context(), m.actor, id, rest[0])
		}, "PLAN"),
		modelLimitsCommand(),
	)
	return root
}

func tenantChange(verb, short string, change func(*cobra.Command, *management, tenants.ID, []string) error, further ...string) *cobra.Command {
	return &cobra.Command{
		Use:   strings.Join(append([]string{verb, "TENANT"}, further...), " "),
		Short: short,
		Args:  cobra.ExactArgs(1 + len(further)),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			if err := change(cmd, m, tenants.ID(args[0]), args[1:]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(m.out, "%s: %s done\n", args[0], verb)
			return err
		}),
	}
}

func day(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04")
}
