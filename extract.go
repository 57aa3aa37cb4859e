package main

import (
	"github.com/spf13/cobra"

	"weir/gateway/media"
)

const extractName = "extract"

// extractCommand reads the text of a document in a process of its own. The
// gateway starts it; it is of no use to people.
func extractCommand() *cobra.Command {
	return &cobra.Command{
		Use:    extractName,
		Short:  "Read a PDF document from standard input and write its text",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return media.Extract(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
