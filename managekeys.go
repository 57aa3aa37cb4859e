package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir/tenants"
)

func keyCommand() *cobra.Command {
	root := &cobra.Command{Use: "key", Short: "Create, list and revoke API keys"}
	root.AddCommand(keyCreateCommand(), keyListCommand(), &cobra.Command{
		Use:   "revoke KEY_ID",
		Short: "End a key for ever, and the requests that it runs, on every replica",
		Args:  cobra.ExactArgs(1),
		RunE: managed(func(cmd *cobra.Command, m *management, args []string) error {
			id := tenants.KeyID(args[0])
			tenant, err := tenants.TenantOfKey(cmd.Context(), m.worker, id)
			if err != nil {
				return fmt.Errorf("key %s: %w", id, err)
			}
			if err := m.store.RevokeKey(cmd.Context(), m.actor, tenant, id); err != nil {
				return fmt.Errorf("key %s: %w", id, err)
			}
			_, err = fmt.Fprintf(m.out, "revoked %s\n", id)
			return err
		}),
	})
	return root
}

func keyCreateCommand() *cobra.Command {
	var (
		spec            tenants.KeySpec
		tenant, project string
		kind            string
		lifetime        time.Duration
		quiet           bool
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a key; its secret is shown this once",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			spec.Kind, spec.Project = tenants.Kind(kind), tenants.ProjectID(project)
			if spec.Project == "" && spec.Kind != tenants.AdminKey {
				if spec.Project, err = oldestProject(cmd, m, id); err != nil {
					return err
				}
			}
			if lifetime > 0 {
				spec.ExpiresAt = time.Now().Add(lifetime)
			}
			secret, key, err := m.store.CreateKey(cmd.Context(), m.actor, id, spec)
			if err != nil {
				return err
			}
			if quiet {
				_, err = fmt.Fprintln(m.out, secret.Reveal())
				return err
			}
			_, err = fmt.Fprintf(m.out, "%s (%s, project %s)\n%s\nKeep it now: it is not shown again.\n", key.ID, key.Name, key.Project, secret.Reveal())
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "tenant that owns the key")
	f.StringVar(&project, "project", "", "its project (default: the tenant's first)")
	f.StringVar(&spec.Name, "name", "unnamed", "what the key is for")
	f.StringVar(&kind, "kind", string(tenants.ProjectKey), "sk (project), sa (service account) or adm (administration)")
	f.StringSliceVar(&spec.Scopes, "scope", nil, "what it may do, such as inference:chat (default: all of its kind)")
	f.StringSliceVar(&spec.Models, "allow-model", nil, "models that it may use (default: all)")
	f.StringSliceVar(&spec.CIDRs, "allow-network", nil, "client networks that may use it (default: all)")
	limitFlags(cmd, &spec.Limits)
	f.DurationVar(&lifetime, "expires-in", 0, "lifetime, such as 720h (default: no end)")
	f.BoolVar(&quiet, "quiet", false, "print the secret alone")
	return cmd
}

func oldestProject(cmd *cobra.Command, m *management, tenant tenants.ID) (tenants.ProjectID, error) {
	projects, err := m.store.ListProjects(cmd.Context(), tenant)
	if err != nil {
		return "", err
	}
	if len(projects) == 0 {
		return "", fmt.Errorf("tenant %s has no project (or there is no such tenant)", tenant)
	}
	return projects[0].ID, nil
}

func keyListCommand() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List a tenant's keys, newest first",
		Args:  cobra.NoArgs,
		RunE: managed(func(cmd *cobra.Command, m *management, _ []string) error {
			id, err := m.tenant(tenant)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(m.out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tSECRET\tPROJECT\tCREATED\tLAST USED\tSTATE")
			const page = 500
			for after := tenants.KeyID(""); ; {
				keys, err := m.store.ListKeys(cmd.Context(), id, after, page)
				if err != nil {
					return err
				}
				for _, k := range keys {
					fmt.Fprintf(w, "%s\t%s\t%s...%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, k.DisplayStart, k.DisplayEnd, k.Project, day(k.CreatedAt), day(k.LastUsedAt), keyState(k))
					after = k.ID
				}
				if len(keys) < page {
					return w.Flush()
				}
			}
		}),
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "whose keys")
	return cmd
}

func keyState(k tenants.Key) string {
	switch {
	case !k.RevokedAt.IsZero():
		return "revoked " + day(k.RevokedAt)
	case !k.ExpiresAt.IsZero() && k.ExpiresAt.Before(time.Now()):
		return "expired " + day(k.ExpiresAt)
	case !k.ExpiresAt.IsZero():
		return "active until " + day(k.ExpiresAt)
	default:
		return "active"
	}
}
