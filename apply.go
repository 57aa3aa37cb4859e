package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"weir/gateway/catalogue"
)

func applyCommand() *cobra.Command {
	var file string
	var o catalogue.Options
	cmd := &cobra.Command{
		Use:   "apply -f catalogue.yaml",
		Short: "Make the catalogue what a file says: models, pools, bands, plans, prices",
		Long: `Make the catalogue what a file says, and print what changed. Only what the file names
is changed; --prune removes the rest (prices stay: receipts refer to them). Running
replicas follow at once. docs/operating.md describes the file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err
			}
			raw, err := readDocument(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			doc, warnings, err := catalogue.Parse(raw)
			if err != nil {
				return err
			}
			included, err := doc.Include(func(name string) ([]byte, error) {
				if !filepath.IsAbs(name) {
					name = filepath.Join(filepath.Dir(file), name) // standard input: the working directory
				}
				return os.ReadFile(name)
			})
			if err != nil {
				return err
			}
			o.Warn = func(w string) { fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w) }
			for _, w := range append(warnings, included...) {
				o.Warn(w)
			}
			o.Billed = c.BillingMode != "off"
			return applyDocument(cmd.Context(), c, doc, cmd.OutOrStdout(), o)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file; - reads standard input (required)")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only print what would change")
	cmd.Flags().BoolVar(&o.Prune, "prune", false, "remove what the file doesn't name")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

func readDocument(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(file)
}

// applyDocument applies a document as weir_app and prints what changed.
func applyDocument(ctx context.Context, c *Config, doc *catalogue.Document, out io.Writer, o catalogue.Options) error {
	app, err := openPool(ctx, "WEIR_DATABASE_URL", c.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer app.Close()
	changes, err := catalogue.Apply(ctx, app, doc, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, changes.String())
	return err
}
