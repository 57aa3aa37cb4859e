// Weir is a multi-tenant inference gateway: one OpenAI-compatible endpoint,
// many tenants, a shared fleet of model servers, fair under load, and every
// token accounted for.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run())
}

// run is main without the exit, so that story tests can use it as a command.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := rootCommand().ExecuteContext(ctx)
	switch {
	case err == nil, errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return 0
	default:
		fmt.Fprintln(os.Stderr, "weir:", err)
		return 1
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "weir",
		Short:         "A multi-tenant inference gateway: fair, metered, OpenAI-compatible",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().String("config", "", "configuration file (weir.yaml); the environment overrides it")
	root.AddCommand(
		serveCommand(), devCommand(), migrateCommand(), applyCommand(),
		tenantCommand(), projectCommand(), keyCommand(), receiptsCommand(), priceCommand(), rerateCommand(), creditCommand(), walletCommand(), ledgerCommand(),
		endpointCommand(), explainCommand(), doctorCommand(), schedulerCommand(), simCommand(), extractCommand(), versionCommand(),
	)
	return root
}

// configuration loads what --config and the environment say.
func configuration(cmd *cobra.Command) (*Config, error) {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, err
	}
	return loadConfig(path, os.LookupEnv)
}
