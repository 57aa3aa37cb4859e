package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir/migrations"
)

func migrateCommand() *cobra.Command {
	var pending bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database schema up to this version",
		Long: `Bring the database schema up to this version, as the schema's owner
(WEIR_OWNER_DATABASE_URL). Safe to run from several places at once, and while the
previous version of weir still serves. docs/database.md says how to prepare a database.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err
			}
			if c.OwnerURL == "" {
				return errors.New("WEIR_OWNER_DATABASE_URL is not set: migrations run as the owner of the schema")
			}
			out := cmd.OutOrStdout()
			if pending {
				n, err := migrations.Pending(cmd.Context(), c.OwnerURL.Reveal())
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(out, "%d migrations to apply\n", n)
				return err
			}
			applied, err := migrations.Up(cmd.Context(), newLogger(c, cmd.ErrOrStderr()), c.OwnerURL.Reveal())
			for _, name := range applied {
				fmt.Fprintln(out, "applied", name)
			}
			if err == nil && len(applied) == 0 {
				fmt.Fprintln(out, "nothing to apply")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&pending, "pending", false, "only count what would be applied")
	return cmd
}
