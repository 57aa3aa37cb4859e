package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"weir/tenants"
)

// Secret is a setting that must not be seen: it hides itself from logs,
// errors and JSON. Reveal is the only way to its text.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[hidden]"
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret from encoders.
func (s Secret) MarshalText() ([]byte, error) { //nolint:unparam // encoding.TextMarshaler
	return []byte(s.String()), nil
}

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// Config is everything that an installation may set. The zero value of each
// field means its default; settings.go has the one table of names, defaults
// and help texts.
type Config struct {
	development bool // `weir dev`, which no setting can claim to be

	Listen         []string // public addresses
	TLSCert        string
	TLSKey         string
	OpsAddr        string
	OpsToken       Secret
	ScalerAddr     string   // of KEDA's external scaler; empty: none
	OpsURLs        []string // of all replicas, for `weir explain`
	Scheduler      SchedulerConfig
	DatabaseURL    Secret // role weir_app
	WorkerURL      Secret // role weir_worker
	OwnerURL       Secret // migrations only
	RedisUser      Secret
	RedisPassword  Secret
	RedisCA        string
	RedisPlaintext string // on, off
	RedisURL       Secret
	StateDir       string
	Peppers        tenants.Peppers
	Masters        tenants.MasterKeys
	CacheSalt      Secret // HMAC of the engines' cache_salt
	TrustedProxies []netip.Prefix
	MediaFetch     string         // on, off
	OutboundAllow  []netip.Prefix // reachable for tenants though not public
	OutboundPorts  []uint16
	MaxBody        int64
	AuthStale      time.Duration
	KeepAlive      time.Duration
	DrainTimeout   time.Duration
	Replicas       int    // 0: counted
	BackgroundRuns int    // that this replica makes at once
	FairnessIDs    int    // that metrics show
	BillingMode    string // off, shadow, enforce: of tenants without a mode of their own
	HoldSlice      int    // output tokens for which a stream sets money aside at a time
	ChunkTTL       time.Duration
	ChunkMaxNano   int64
	OrphanAfter    time.Duration
	Tenant         string
	LogLevel       string
	LogFormat      string
}

// SchedulerConfig is what `weir scheduler` alone is told.
type SchedulerConfig struct {
	Listen    string
	Cert, Key string
	ClientCA  string
	Plaintext string // on, off
	Lease     string
	LeaseTTL  time.Duration
}

// loadConfig reads the defaults, then the file if path names one, then the
// environment, each over the one before. All complaints come back together.
func loadConfig(path string, lookupEnv func(string) (string, bool)) (*Config, error) {
	c := &Config{}
	var errs []error
	for _, s := range settings() {
		if s.preset != "" {
			errs = append(errs, s.apply(c, s.preset, "default"))
		}
	}
	if path != "" {
		errs = append(errs, c.readFile(path))
	}
	for _, s := range settings() {
		value, from, err := s.fromEnv(lookupEnv)
		if err != nil {
			errs = append(errs, err)
		} else if from != "" {
			errs = append(errs, s.apply(c, value, from))
		}
	}
	return c, errors.Join(errs...)
}

// readFile applies a YAML file. Nested keys are joined with "_", so that
// "ops: {addr: x}" and "ops_addr: x" are the same setting.
func (c *Config) readFile(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(raw, &root); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(root.Content) == 0 {
		return nil
	}
	values := map[string]string{}
	if err := flatten("", root.Content[0], values); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	var errs []error
	for _, s := range settings() {
		value, ok := values[s.name]
		delete(values, s.name)
		switch {
		case !ok:
		case s.secret:
			errs = append(errs, fmt.Errorf("%s: %s is a secret: give it as %s or %s_FILE", path, s.name, s.env(), s.env()))
		default:
			errs = append(errs, s.apply(c, value, path))
		}
	}
	for name := range values {
		errs = append(errs, fmt.Errorf("%s: unknown setting %q (`weir serve --help` lists them)", path, name))
	}
	return errors.Join(errs...)
}

func flatten(prefix string, n *yaml.Node, into map[string]string) error {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := strings.TrimPrefix(prefix+"_"+n.Content[i].Value, "_")
			if err := flatten(name, n.Content[i+1], into); err != nil {
				return err
			}
		}
	case yaml.SequenceNode:
		var items []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode {
				return fmt.Errorf("line %d: %s takes a list of plain values", item.Line, prefix)
			}
			items = append(items, item.Value)
		}
		into[prefix] = strings.Join(items, ",")
	case yaml.ScalarNode:
		into[prefix] = n.Value
	default:
		return fmt.Errorf("line %d: %s: anchors and aliases are not supported", n.Line, prefix)
	}
	return nil
}

func parseList(v string) []string {
	var out []string
	for item := range strings.SplitSeq(v, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

func parsePrefixes(v string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, item := range parseList(v) {
		if !strings.Contains(item, "/") {
			addr, err := netip.ParseAddr(item)
			if err != nil {
				return nil, fmt.Errorf("%q is neither an address nor a network", item)
			}
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network", item)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func parsePorts(v string) ([]uint16, error) {
	var out []uint16
	for _, item := range parseList(v) {
		n, err := strconv.ParseUint(item, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is no port", item)
		}
		out = append(out, uint16(n))
	}
	return out, nil
}

// parseBytes reads a size such as "32MiB", "500KB" or "1048576".
func parseBytes(v string) (int64, error) {
	units := []struct {
		suffix string
		factor int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}
	for _, u := range units {
		number, ok := strings.CutSuffix(v, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n <= 0 || n > (1<<40)/u.factor {
			return 0, fmt.Errorf("%q is not a size such as 32MiB", v)
		}
		return n * u.factor, nil
	}
	return 0, fmt.Errorf("%q is not a size such as 32MiB", v)
}
