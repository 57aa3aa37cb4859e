package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/billing"
	"weir/tenants"
)

// setting is one line of the table below: a key of weir.yaml, also read from
// the environment as WEIR_ and the name in upper case. A secret is read from
// the environment alone, or from the file that NAME_FILE names.
type setting struct {
	name   string
	help   string
	preset string
	secret bool
	set    func(c *Config, value string) error
}

func settings() []setting {
	return []setting{
		{name: "listen", help: "public addresses, comma-separated", preset: ":8080", set: list(func(c *Config) *[]string { return &c.Listen })},
		{name: "tls_cert_file", help: "certificate of the public listener; without one, terminate TLS in front", set: text(func(c *Config) *string { return &c.TLSCert })},
		{name: "tls_key_file", help: "its private key", set: text(func(c *Config) *string { return &c.TLSKey })},
		{name: "ops_addr", help: "operators' address: /healthz, /readyz, /metrics, /ops/v1", preset: "127.0.0.1:9090", set: text(func(c *Config) *string { return &c.OpsAddr })},
		{name: "ops_token", help: "bearer token for /ops/v1; without one it refuses all", secret: true, set: hidden(func(c *Config) *Secret { return &c.OpsToken })},
		{name: "ops_urls", help: "operators' addresses of all replicas, comma-separated, for `weir explain`; without them, ops_addr", set: func(c *Config, v string) (err error) {
			c.OpsURLs, err = parseOpsURLs(v)
			return err
		}},
		{name: "scaler_addr", help: "address for KEDA's external scaler, such as 127.0.0.1:9091; it has no authentication", set: text(func(c *Config) *string { return &c.ScalerAddr })},
		{name: "scheduler_listen", help: "address of `weir scheduler` for gateways and proxies (ext_proc over gRPC)", preset: "127.0.0.1:9002", set: text(func(c *Config) *string { return &c.Scheduler.Listen })},
		{name: "scheduler_tls_cert_file", help: "its certificate; another address than loopback needs one", set: text(func(c *Config) *string { return &c.Scheduler.Cert })},
		{name: "scheduler_tls_key_file", help: "its private key", set: text(func(c *Config) *string { return &c.Scheduler.Key })},
		{name: "scheduler_client_ca_file", help: "certificates that sign those of gateways and proxies, which must then present one", set: text(func(c *Config) *string { return &c.Scheduler.ClientCA })},
		{name: "scheduler_plaintext", help: "whether it may listen beyond this machine without TLS, for proxies and not for gateways: on or off", preset: "off", set: oneOf(func(c *Config) *string { return &c.Scheduler.Plaintext }, "on", "off")},
		{name: "scheduler_lease", help: "name that primary and standby share: of those with the same one, one serves", preset: "default", set: text(func(c *Config) *string { return &c.Scheduler.Lease })},
		{name: "scheduler_lease_ttl", help: "after how long a standby takes over from a primary that died, and how long Postgres may be away before the primary stops", preset: "5s", set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil || d < minLeaseTTL || d > maxLeaseTTL {
				return fmt.Errorf("must be a duration from %v to %v", minLeaseTTL, maxLeaseTTL)
			}
			c.Scheduler.LeaseTTL = d
			return nil
		}},
		{name: "database_url", help: "Postgres as weir_app", secret: true, set: hidden(func(c *Config) *Secret { return &c.DatabaseURL })},
		{name: "worker_database_url", help: "Postgres as weir_worker", secret: true, set: hidden(func(c *Config) *Secret { return &c.WorkerURL })},
		{name: "owner_database_url", help: "Postgres as the owner of the schema; only `weir migrate` (and `weir dev`) uses it", secret: true, set: hidden(func(c *Config) *Secret { return &c.OwnerURL })},
		{name: "redis_url", help: "Redis for limits that several replicas share", secret: true, set: hidden(func(c *Config) *Secret { return &c.RedisURL })},
		{name: "redis_user", help: "its user, over the one in the URL", secret: true, set: hidden(func(c *Config) *Secret { return &c.RedisUser })},
		{name: "redis_password", help: "the user's password, over the one in the URL", secret: true, set: hidden(func(c *Config) *Secret { return &c.RedisPassword })},
		{name: "redis_ca_file", help: "certificates that sign Redis' own, where its URL is rediss://; without it the system's", set: text(func(c *Config) *string { return &c.RedisCA })},
		{name: "redis_plaintext", help: "whether Redis on another machine may be used without TLS: on or off", preset: "off", set: oneOf(func(c *Config) *string { return &c.RedisPlaintext }, "on", "off")},
		{name: "state_dir", help: "folder for what must outlive the process (the receipt spool)", preset: ".weir", set: text(func(c *Config) *string { return &c.StateDir })},
		{name: "keys_pepper", help: "secrets of the stored API keys: VERSION:BASE64 of 32 random bytes or more; older ones, still accepted, after commas", secret: true, set: func(c *Config, v string) (err error) {
			c.Peppers, err = tenants.ParsePeppers(v)
			return err
		}},
		{name: "master_keys", help: "keys that tenants' data keys are wrapped under: VERSION:BASE64 of 32 random bytes; older ones, still opened, after commas", secret: true, set: func(c *Config, v string) (err error) {
			c.Masters, err = tenants.ParseMasterKeys(v)
			return err
		}},
		{name: "cache_salt_secret", help: "secret behind the engines' per-tenant cache_salt, at least 32 characters", secret: true, set: hidden(func(c *Config) *Secret { return &c.CacheSalt })},
		{name: "trusted_proxies", help: "addresses or networks whose X-Forwarded-For is believed", set: func(c *Config, v string) (err error) {
			c.TrustedProxies, err = parsePrefixes(v)
			return err
		}},
		{name: "media_fetch", help: "whether images and files that requests name by address are fetched: on or off", preset: "on", set: oneOf(func(c *Config) *string { return &c.MediaFetch }, "on", "off")},
		{name: "outbound_allow", help: "addresses or networks that may be reached for tenants though they are not public", set: func(c *Config, v string) (err error) {
			c.OutboundAllow, err = parsePrefixes(v)
			return err
		}},
		{name: "outbound_ports", help: "ports that may be reached for tenants", preset: "80,443", set: func(c *Config, v string) (err error) {
			c.OutboundPorts, err = parsePorts(v)
			return err
		}},
		{name: "http_max_body", help: "cap on a decoded request body", preset: "32MiB", set: func(c *Config, v string) (err error) {
			c.MaxBody, err = parseBytes(v)
			return err
		}},
		{name: "auth_stale_max", help: "how long known keys are served while Postgres is away", preset: "30s", set: span(func(c *Config) *time.Duration { return &c.AuthStale })},
		{name: "stream_keepalive", help: "silence after which a stream gets a keep-alive comment", preset: "15s", set: span(func(c *Config) *time.Duration { return &c.KeepAlive })},
		{name: "drain_timeout", help: "how long running requests may finish at shutdown", preset: "30s", set: span(func(c *Config) *time.Duration { return &c.DrainTimeout })},
		{name: "replicas", help: "gateway replicas, which are counted in Postgres where this is not set; what pools may run and hold is divided by it, and limits while Redis is away", set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 {
				return errors.New("must be a whole number from 1 on")
			}
			c.Replicas = n
			return nil
		}},
		{name: "background_runs", help: "background responses that this replica makes at once, a tenant at most a quarter of them; they wait in the scheduler's queue, too", preset: "64", set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxBackgroundRuns {
				return fmt.Errorf("must be a whole number from 1 to %d", maxBackgroundRuns)
			}
			c.BackgroundRuns = n
			return nil
		}},
		{name: "metrics_fairness_ids", help: "how many tenants metrics tell apart, by their fairness ids; the rest are one, \"other\"", preset: "1000", set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || n > maxFairnessIDs {
				return fmt.Errorf("must be a whole number from 0 to %d", maxFairnessIDs)
			}
			c.FairnessIDs = n
			return nil
		}},
		{name: "billing_mode", help: "off, shadow (rate, never refuse) or enforce (nothing without credit), of tenants without a mode of their own", preset: "off", set: oneOf(func(c *Config) *string { return &c.BillingMode }, "off", "shadow", "enforce")},
		{name: "billing_hold_slice_tokens", help: "output tokens for which a stream sets money aside at a time", preset: "2048", set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < minHoldSlice || n > maxHoldSlice {
				return fmt.Errorf("must be a whole number from %d to %d", minHoldSlice, maxHoldSlice)
			}
			c.HoldSlice = n
			return nil
		}},
		{name: "billing_chunk_ttl", help: "how long what a replica holds of a wallet stays its own without being renewed, and so how long it spends while Postgres is away", preset: "30s", set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil || d < minChunkTTL || d > maxChunkTTL {
				return fmt.Errorf("must be a duration from %v to %v", minChunkTTL, maxChunkTTL)
			}
			c.ChunkTTL = d
			return nil
		}},
		{name: "billing_chunk_max_usd", help: "the most that a replica takes of a wallet at a time, in USD", preset: "5", set: func(c *Config, v string) error {
			micro, err := billing.ParseUSD(v)
			if err != nil || micro == 0 {
				return errors.New("must be a positive decimal of at most 6 places, such as 5 or 0.50")
			}
			c.ChunkMaxNano = micro * nanoPerMicro
			return nil
		}},
		{name: "orphan_after", help: "silence after which a replica counts as dead for good, and what it left is settled", preset: "90s", set: span(func(c *Config) *time.Duration { return &c.OrphanAfter })},
		{name: "tenant", help: "the tenant that `weir key` and `weir receipts` mean without --tenant", set: text(func(c *Config) *string { return &c.Tenant })},
		{name: "log_level", help: "debug, info, warn or error", preset: "info", set: oneOf(func(c *Config) *string { return &c.LogLevel }, "debug", "info", "warn", "error")},
		{name: "log_format", help: "text or json", preset: "json", set: oneOf(func(c *Config) *string { return &c.LogFormat }, "text", "json")},
	}
}

// Bounds of what holds and chunks may be set to.
const (
	minHoldSlice, maxHoldSlice = 64, 1_000_000
	minChunkTTL, maxChunkTTL   = 5 * time.Second, 10 * time.Minute
	nanoPerMicro               = 1000
)

// Bounds of the schedulers' lease.
const minLeaseTTL, maxLeaseTTL = time.Second, time.Minute

// maxFairnessIDs bounds what metrics take of memory.
const maxFairnessIDs = 1000

// maxBackgroundRuns is how many the job queue fetches at most.
const maxBackgroundRuns = 10_000

func (s setting) env() string { return "WEIR_" + strings.ToUpper(s.name) }

func (s setting) apply(c *Config, value, from string) error {
	if err := s.set(c, value); err != nil {
		if s.secret { // the complaint may quote the value
			return fmt.Errorf("%s is malformed (%s)", from, s.help)
		}
		return fmt.Errorf("%s: %s: %w", from, s.name, err)
	}
	return nil
}

// fromEnv returns the value and where it stood; from is empty when it is not set.
func (s setting) fromEnv(lookup func(string) (string, bool)) (value, from string, err error) {
	if v, ok := lookup(s.env()); ok && v != "" {
		return v, s.env(), nil
	}
	path, ok := lookup(s.env() + "_FILE")
	if !s.secret || !ok || path == "" {
		return "", "", nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		return "", "", fmt.Errorf("%s_FILE: %s: %w", s.env(), path, err)
	}
	return strings.TrimSpace(string(raw)), s.env() + "_FILE", nil
}

// settingsHelp is the list of settings for `weir serve --help`.
func settingsHelp() string {
	var b strings.Builder
	b.WriteString("Settings (key of weir.yaml, also as WEIR_ and its name in upper case):\n")
	for _, s := range settings() {
		note := ""
		switch {
		case s.secret:
			note = " [secret: environment or _FILE only]"
		case s.preset != "":
			note = " [" + s.preset + "]"
		}
		fmt.Fprintf(&b, "  %-22s %s%s\n", s.name, s.help, note)
	}
	return b.String()
}

func text(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error { *field(c) = v; return nil }
}

func list(field func(*Config) *[]string) func(*Config, string) error {
	return func(c *Config, v string) error { *field(c) = parseList(v); return nil }
}

func hidden(field func(*Config) *Secret) func(*Config, string) error {
	return func(c *Config, v string) error { *field(c) = Secret(v); return nil }
}

func span(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a duration such as 30s", v)
		}
		*field(c) = d
		return nil
	}
}

func oneOf(field func(*Config) *string, allowed ...string) func(*Config, string) error {
	return func(c *Config, v string) error {
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("%q is not one of %s", v, strings.Join(allowed, ", "))
		}
		*field(c) = v
		return nil
	}
}
