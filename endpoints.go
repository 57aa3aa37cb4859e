package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"weir/gateway/catalogue"
)

func endpointCommand() *cobra.Command {
	root := &cobra.Command{Use: "endpoint", Short: "List model servers; drain one before maintenance"}
	root.AddCommand(
		&cobra.Command{
			Use:   "list [POOL]",
			Short: "List the endpoints as the replicas see them, else as the catalogue has them",
			Long: `List the endpoints as the replicas see them: discovered ones too, with their health
and what runs on them. Addresses come from WEIR_OPS_URLS (by default this machine's
ops_addr), the token from WEIR_OPS_TOKEN. Where no replica answers, the catalogue's
endpoints are listed.`,
			Args: cobra.MaximumNArgs(1),
			RunE: listEndpoints,
		},
		drainCommand("drain", "Let an endpoint finish what runs and take nothing new, on every replica", true),
		drainCommand("undrain", "Let a drained endpoint take requests again", false),
	)
	return root
}

func drainCommand(verb, short string, on bool) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " POOL ENDPOINT",
		Short: short,
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err
			}
			app, err := openPool(cmd.Context(), "WEIR_DATABASE_URL", c.DatabaseURL, 1)
			if err != nil {
				return err
			}
			defer app.Close()
			changes, err := catalogue.Drain(cmd.Context(), app, args[0], args[1], on)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), changes.String())
			return err
		},
	}
}

// livePool is the part of /ops/v1/pools that is listed.
type livePool struct {
	State struct {
		Endpoints []liveEndpoint `json:"endpoints"`
	} `json:"state"`
}

type liveEndpoint struct {
	ID             string `json:"id"`
	URL            string `json:"url"`
	MaxConcurrency int    `json:"max_concurrency"`
	Live           int    `json:"live"`
	Health         string `json:"health"`
	Circuit        string `json:"circuit"`
	Draining       bool   `json:"draining"`
	Load           struct {
		Running int     `json:"running"`
		Waiting int     `json:"waiting"`
		KVUsage float64 `json:"kv_usage"`
	} `json:"load"`
}

func listEndpoints(cmd *cobra.Command, args []string) error {
	c, err := configuration(cmd)
	if err != nil {
		return err
	}
	wanted := func(pool string) bool { return len(args) == 0 || args[0] == pool }
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
	answers, failed := askPools(cmd.Context(), c)
	for _, err := range failed {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", err)
	}
	if len(answers) == 0 {
		if err := listCatalogue(cmd.Context(), c, w, wanted); err != nil {
			return err
		}
		return w.Flush()
	}
	fmt.Fprintln(w, "REPLICA\tPOOL\tENDPOINT\tURL\tSTATE\tLIVE\tENGINE RUNS\tENGINE WAITS\tKV CACHE")
	for _, a := range answers {
		for _, name := range slices.Sorted(maps.Keys(a.Pools)) {
			if wanted(name) {
				printLive(w, a.address, name, a.Pools[name].State.Endpoints)
			}
		}
	}
	return w.Flush()
}

// livePools is what one replica answers.
type livePools struct {
	address string
	Pools   map[string]livePool `json:"pools"`
}

// askPools asks every replica for its pools.
func askPools(ctx context.Context, c *Config) (answers []livePools, failed []error) {
	if c.OpsToken == "" {
		return nil, []error{errors.New("WEIR_OPS_TOKEN is not set: no replica was asked, this is the catalogue")}
	}
	addresses, err := opsAddresses(c)
	if err != nil {
		return nil, []error{err}
	}
	for _, address := range addresses {
		a := livePools{address: address}
		if err := askOps(ctx, address, c.OpsToken, "/ops/v1/pools", &a); err != nil {
			failed = append(failed, err)
		} else {
			answers = append(answers, a)
		}
	}
	return answers, failed
}

func printLive(w io.Writer, replica, pool string, endpoints []liveEndpoint) {
	for _, e := range endpoints {
		state := e.Health
		switch {
		case e.Draining:
			state = "draining"
		case e.Health == "healthy" && e.Circuit != "closed":
			state = "circuit " + e.Circuit
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%d\t%d\t%.0f%%\n",
			replica, pool, e.ID, e.URL, state, e.Live, e.MaxConcurrency, e.Load.Running, e.Load.Waiting, 100*e.Load.KVUsage)
	}
}

func listCatalogue(ctx context.Context, c *Config, w io.Writer, wanted func(string) bool) error {
	app, err := openPool(ctx, "WEIR_DATABASE_URL", c.DatabaseURL, 1)
	if err != nil {
		return err
	}
	defer app.Close()
	snapshot, err := catalogue.Load(ctx, app)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "POOL\tENDPOINT\tURL\tSTATE\tENGINE\tACCELERATOR\tROLE")
	for _, p := range snapshot.Pools() {
		if !wanted(p.Name) {
			continue
		}
		for _, e := range p.Endpoints {
			state := "in use"
			if e.Draining() {
				state = "draining"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, e.ID, e.URL, state, e.Engine, cmp.Or(e.Accelerator, "-"), cmp.Or(e.Role, "-"))
		}
		if d := p.Discovery; d != nil {
			for _, id := range d.Drain {
				fmt.Fprintf(w, "%s\t%s\tdiscovered\tdraining\t%s\t%s\t%s\n", p.Name, id, d.Endpoint.Engine, cmp.Or(d.Endpoint.Accelerator, "-"), cmp.Or(d.Endpoint.Role, "-"))
			}
		}
	}
	return nil
}
