package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"weir/billing"
	"weir/gateway/catalogue"
	"weir/migrations"
)

// finding is what one check of doctor says: fine, or what is wrong and what
// to do about it. A warning lets weir serve; a fault doesn't.
type finding struct {
	about string
	fault bool
	wrong string // empty: fine
	todo  string
}

func fine(about string) finding { return finding{about: about} }

func warning(about, wrong, todo string) finding {
	return finding{about: about, wrong: wrong, todo: todo}
}

func fault(about, wrong, todo string) finding {
	return finding{about: about, fault: true, wrong: wrong, todo: todo}
}

// errFaults ends doctor with a failure after its list.
var errFaults = errors.New("faults found: the list above says what to do")

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with this installation, and what to do",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err // says all that is wrong with the configuration
			}
			out, faults := cmd.OutOrStdout(), false
			for _, f := range diagnose(cmd.Context(), c) {
				switch {
				case f.wrong == "":
					fmt.Fprintf(out, "ok       %s\n", f.about)
				case f.fault:
					faults = true
					fmt.Fprintf(out, "FAULT    %s: %s\n         -> %s\n", f.about, f.wrong, f.todo)
				default:
					fmt.Fprintf(out, "warning  %s: %s\n         -> %s\n", f.about, f.wrong, f.todo)
				}
			}
			if faults {
				return errFaults
			}
			return nil
		},
	}
	cmd.AddCommand(doctorEngineCommand())
	return cmd
}

// diagnose runs every check that what came before it allows.
func diagnose(ctx context.Context, c *Config) []finding {
	list := []finding{checkSecrets(c), checkStateDir(c), checkTLS(c)}
	if c.RedisURL != "" {
		list = append(list, checkRedis(ctx, c))
	} else if c.Replicas > 1 {
		list = append(list, warning("redis", "several replicas but no WEIR_REDIS_URL", "set it, or each replica grants every limit in full"))
	}
	app, worker, err := openPools(ctx, c)
	if err != nil {
		return append(list, fault("database", err.Error(), "see docs/database.md for roles and URLs"))
	}
	defer app.Close()
	defer worker.Close()
	list = append(list, fine("database"))
	schema := checkSchema(ctx, c, app, worker)
	list = append(list, schema...)
	for _, f := range schema {
		if f.fault {
			return list
		}
	}
	return append(append(list, checkJobs(ctx, worker)), checkCatalogue(ctx, c, app)...)
}

// checkJobs looks whether anybody does jobs: replicas elect one among them that
// makes the periodic ones.
func checkJobs(ctx context.Context, worker *pgxpool.Pool) finding {
	var led bool
	var late int
	err := worker.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM river.river_leader WHERE expires_at > now()),
		       (SELECT count(*) FROM river.river_job WHERE state = 'available' AND scheduled_at < now() - interval '5 minutes')`).
		Scan(&led, &late)
	switch {
	case err != nil:
		return fault("jobs", err.Error(), "run `weir migrate` with WEIR_OWNER_DATABASE_URL")
	case !led:
		return warning("jobs", "no replica does any now", "start one with `weir serve`: background responses wait for it")
	case late > 0:
		return warning("jobs", fmt.Sprintf("%d have waited for more than 5 minutes", late), "add replicas, or raise background_runs")
	default:
		return fine("jobs")
	}
}

func checkSecrets(c *Config) finding {
	err := c.Peppers.Validate()
	switch {
	case err != nil:
		return fault("secrets", "WEIR_KEYS_PEPPER is not set", `make one: echo "1:$(openssl rand -base64 32)"; without it no key can be checked`)
	case c.Masters.Validate() != nil:
		return fault("secrets", "WEIR_MASTER_KEYS is not set", `make one: echo "1:$(openssl rand -base64 32)"; without it no response can be kept`)
	case len(c.CacheSalt.Reveal()) < minSecret:
		return fault("secrets", "WEIR_CACHE_SALT_SECRET is missing or short", "set it to 32 random characters or more: openssl rand -base64 32")
	case c.OpsToken == "":
		return warning("secrets", "WEIR_OPS_TOKEN is not set", "set it to use /ops/v1 on the operators' listener")
	}
	return fine("secrets")
}

func checkStateDir(c *Config) finding {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fault("state folder", err.Error(), "set WEIR_STATE_DIR to a folder on a persistent volume that weir may write")
	}
	probe := filepath.Join(c.StateDir, ".doctor")
	if err := replaceFile(probe, []byte("probe")); err != nil {
		return fault("state folder", err.Error(), "set WEIR_STATE_DIR to a folder on a persistent volume that weir may write")
	}
	_ = os.Remove(probe)
	return fine("state folder " + c.StateDir)
}

func checkTLS(c *Config) finding {
	if c.TLSCert == "" && c.TLSKey == "" {
		return warning("tls", "the public listener speaks plain HTTP", "terminate TLS in front of it, or set tls_cert_file and tls_key_file")
	}
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return fault("tls", err.Error(), "check tls_cert_file and tls_key_file")
	}
	if left := time.Until(pair.Leaf.NotAfter); left < 14*24*time.Hour {
		return warning("tls", "the certificate ends on "+day(pair.Leaf.NotAfter), "renew it")
	}
	return fine("tls")
}

func checkSchema(ctx context.Context, c *Config, app, worker *pgxpool.Pool) []finding {
	pending, err := migrations.Pending(ctx, c.DatabaseURL.Reveal())
	if err != nil {
		return []finding{fault("schema", err.Error(), "run `weir migrate` with WEIR_OWNER_DATABASE_URL")}
	}
	if pending > 0 {
		return []finding{fault("schema", fmt.Sprintf("%d migrations are not applied", pending), "run `weir migrate` with WEIR_OWNER_DATABASE_URL")}
	}
	if err := migrations.CheckRoles(ctx, app, worker); err != nil {
		return []finding{fine("schema"), fault("database roles", err.Error(), "see docs/database.md")}
	}
	return []finding{fine("schema"), fine("database roles")}
}

func checkCatalogue(ctx context.Context, c *Config, app *pgxpool.Pool) []finding {
	snapshot, err := catalogue.Load(ctx, app)
	if err != nil {
		return []finding{fault("catalogue", err.Error(), "apply a catalogue: weir apply -f catalogue.yaml")}
	}
	if len(snapshot.Models()) == 0 {
		return []finding{warning("catalogue", "it has no models", "apply one: weir apply -f catalogue.yaml (docs/operating.md has an example)")}
	}
	list := []finding{fine(fmt.Sprintf("catalogue (%d models)", len(snapshot.Models())))}
	for _, name := range snapshot.Unpriced(time.Now()) {
		const todo = "add one under prices: in the catalogue"
		if c.BillingMode == string(billing.ModeEnforce) {
			list = append(list, fault("model "+name, "it has no price: its requests are refused", todo))
		} else {
			list = append(list, warning("model "+name, "it has no price: its receipts cost 0", todo))
		}
	}
	for _, p := range snapshot.Pools() {
		if p.Scheduler.IsShared() {
			list = append(list, checkShared(ctx, snapshot, p)...)
		}
		if len(p.Endpoints) > 0 || !p.Scheduler.IsShared() {
			list = append(list, checkPool(ctx, p)...)
		}
	}
	for _, m := range snapshot.Models() {
		if m.Upstream == catalogue.ResponsesUpstream {
			list = append(list, checkUpstream(ctx, snapshot, m)...)
		}
	}
	return list
}

// checkUpstream looks for the Responses API at the endpoints of a model whose
// responses are asked for there. An empty request has no answer, but one that
// tells whether anybody reads it.
func checkUpstream(ctx context.Context, snapshot *catalogue.Snapshot, m *catalogue.Model) (list []finding) {
	for _, r := range m.Routes {
		p, ok := snapshot.Pool(r.Pool)
		if !ok {
			continue
		}
		for _, e := range p.Endpoints {
			about := fmt.Sprintf("model %s, /v1/responses of endpoint %s", m.Name, e.ID)
			status, err := askNothing(ctx, e.URL+"/v1/responses")
			switch {
			case err != nil: // which is what the endpoint's own line says
			case status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
				list = append(list, warning(about, "the model server has none, and the model says upstream: responses", "leave upstream out of the model, or start a server that has it"))
			default:
				list = append(list, fine(about))
			}
		}
	}
	return list
}

func askNothing(ctx context.Context, url string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

func checkPool(ctx context.Context, p *catalogue.Pool) []finding {
	if len(p.Endpoints) == 0 && p.Discovery != nil {
		return []finding{fine("pool " + p.Name + ", whose endpoints are discovered")}
	}
	if len(p.Endpoints) == 0 {
		return []finding{warning("pool "+p.Name, "it has no endpoints: requests wait, then get 503", "add endpoints in the catalogue")}
	}
	var list []finding
	for _, e := range p.Endpoints {
		about := fmt.Sprintf("pool %s, endpoint %s", p.Name, e.ID)
		err := probeHealth(ctx, e.URL)
		if p.Scheduler.Kind == catalogue.KindLLMDHTTP && errors.Is(err, errUnhealthy) {
			err = nil // it is a gateway, and answers: of /health it tells some model server's word
		}
		if err != nil {
			list = append(list, warning(about, err.Error(), "start the model server, or correct its url in the catalogue"))
		} else {
			list = append(list, fine(about))
		}
	}
	return list
}

var errUnhealthy = errors.New("it answers that it isn't healthy")

func probeHealth(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: GET /health gives %s", errUnhealthy, res.Status)
	}
	return nil
}
