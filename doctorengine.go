package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/gateway/conformance"
)

// errBreaks ends doctor engine with a failure after its list.
var errBreaks = errors.New("the engine breaks what weir relies on: the list above says what to do")

func doctorEngineCommand() *cobra.Command {
	var asJSON bool
	var keyEnv string
	cfg := conformance.Config{}
	cmd := &cobra.Command{
		Use:   "engine URL",
		Short: "Ask a model server whether it does what weir relies on",
		Long: `Ask a model server (vLLM, SGLang, llama.cpp) whether it does what weir relies on:
by requests of its own, so it should be idle. Each check passes, fails, is
unsupported (weir can live with that), or unknown. The exit status is 1 when a
check fails. docs/engines.md explains each.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if cfg.URL, err = engineURL(args[0]); err != nil {
				return err
			}
			for _, name := range cfg.Only {
				if !slices.Contains(conformance.Names(), name) {
					return fmt.Errorf("--only %s: the checks are %s", name, strings.Join(conformance.Names(), ", "))
				}
			}
			if keyEnv != "" {
				if cfg.Key = os.Getenv(keyEnv); cfg.Key == "" { //nolint:forbidigo // the flag names the variable
					return fmt.Errorf("--key-env %s: the variable is empty", keyEnv)
				}
			}
			transport := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second}
			defer transport.CloseIdleConnections()
			cfg.Client, cfg.Now = &http.Client{Transport: transport, CheckRedirect: noRedirect}, time.Now
			report := conformance.Run(cmd.Context(), cfg)
			if err := printReport(cmd.OutOrStdout(), report, asJSON); err != nil {
				return err
			}
			if !report.Conforms() {
				return errBreaks
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Model, "model", "", "name of a model that it serves (default: the first of its list)")
	f.StringVar(&cfg.Engine, "engine", "", "its kind, where that can't be found out: vllm, sglang or llamacpp")
	f.StringVar(&keyEnv, "key-env", "", "environment variable with the server's API key")
	f.IntVar(&cfg.Fill, "fill", 0, "long answers to ask for at once, more than it runs together, to see whom it takes first (default: don't)")
	f.IntVar(&cfg.Storage, "storage", 0, "prompt tokens to send at most, more than its fast cache holds, to see whether slower storage keeps salts apart (default: don't)")
	f.DurationVar(&cfg.Patience, "patience", 8*time.Second, "how long it may take until the server has noticed that a caller left")
	f.StringSliceVar(&cfg.Only, "only", nil, "checks to make, beside health, version and models")
	f.BoolVar(&asJSON, "json", false, "print JSON (docs/engine-report.schema.json)")
	return cmd
}

// noRedirect keeps the key and the prompts at the server that was named.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// engineURL is the base of a server's paths.
func engineURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", err
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", fmt.Errorf("%q is no URL such as http://10.0.0.1:8000", text)
	case u.User != nil:
		return "", errors.New("the URL holds a password: name the variable that has the key with --key-env")
	}
	return strings.TrimSuffix(strings.TrimSuffix(u.Scheme+"://"+u.Host+u.Path, "/"), "/v1"), nil
}

func printReport(w io.Writer, r *conformance.Report, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false)
		return out.Encode(r)
	}
	fmt.Fprintf(w, "%s: %s\n", r.URL, strings.TrimSpace(r.Engine+" "+r.Version+" "+r.Model))
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%-12s %-19s %s\n", c.Status, c.Name, c.Found)
		if c.Todo != "" && c.Status != conformance.Pass {
			fmt.Fprintf(w, "%-32s -> %s\n", "", c.Todo)
		}
	}
	return nil
}
