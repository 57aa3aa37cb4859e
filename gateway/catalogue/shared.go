package catalogue

import (
	"crypto/x509"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The kinds of a pool's scheduler. One that is embedded lives in each replica;
// the others are shared by all of them.
const (
	KindEmbedded = "embedded"   // the default; "" once a document was read
	KindLLMD     = "llm-d"      // llm-d's Endpoint Picker, over ext_proc
	KindWeir     = "weir"       // a `weir scheduler`, over ext_proc
	KindLLMDHTTP = "llm-d-http" // a gateway of llm-d, over plain HTTP: the pool's endpoints are such gateways
)

// kinds are those that a document may name.
func kinds() []string { return []string{KindEmbedded, KindLLMD, KindWeir, KindLLMDHTTP} }

// Shared is how a scheduler in another process is reached and what it may do.
type Shared struct {
	// EPP lists its processes in the order in which they are wanted: the
	// primary, then its standbys. grpcs://host:port, or grpc:// without TLS.
	EPP []string      `yaml:"epp,omitempty"`
	TLS *SchedulerTLS `yaml:"tls,omitempty"`
	// InsecurePlaintext allows grpc:// to other machines. `weir serve` uses no
	// such pool.
	InsecurePlaintext bool `yaml:"insecure_plaintext,omitempty"`

	// Objectives name the InferenceObjective of each band; one that is left out
	// has the band's name.
	Objectives    map[string]string `yaml:"objectives,omitempty"`
	ObjectivesURL string            `yaml:"objectives_url,omitempty"` // where Kubernetes lists them
	MetricsURL    string            `yaml:"metrics_url,omitempty"`    // of the EPP: shows which priorities it knows

	// AllowedDestinations are the networks (10.0.0.0/8) and servers (host:port)
	// to which the scheduler may send beside the pool's endpoints. The pool's
	// key and CA go there.
	AllowedDestinations []string `yaml:"allowed_destinations,omitempty"`
	Scheme              string   `yaml:"scheme,omitempty"` // of these servers: http (default) or https
}

// SchedulerTLS says what an EPP's certificate must be, and shows ours. The zero
// value trusts the system's roots and wants the address's host on it.
type SchedulerTLS struct {
	CAFile     string `yaml:"ca_file,omitempty"`
	CA         string `yaml:"ca,omitempty"` // PEM, in place of a file
	CertFile   string `yaml:"cert_file,omitempty"`
	KeyFile    string `yaml:"key_file,omitempty"`
	ServerName string `yaml:"server_name,omitempty"`
}

const (
	maxEPPs         = 8
	maxDestinations = 1000
	maxPEM          = 64 << 10
	maxSharedWait   = 10 * time.Minute // as scheduler/llmd has it
)

// objectiveName is what Kubernetes lets an object be called.
var objectiveName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

func (s Shared) empty() bool {
	return len(s.EPP) == 0 && s.TLS == nil && !s.InsecurePlaintext && len(s.Objectives) == 0 && s.ObjectivesURL == "" &&
		s.MetricsURL == "" && len(s.AllowedDestinations) == 0 && s.Scheme == ""
}

// IsShared reports whether the pool's scheduler is not this process.
func (s Scheduling) IsShared() bool { return s.Kind != "" && s.Kind != KindEmbedded }

// objectives are the bands' objective names by priority.
func (s Scheduling) objectives(bands []Band) map[int]string {
	if !s.IsShared() {
		return nil
	}
	names := make(map[int]string, len(bands))
	for _, b := range bands {
		names[b.Priority] = b.Name
		if own := s.Objectives[b.Name]; own != "" {
			names[b.Priority] = own
		}
	}
	return names
}

// StandsIn reports whether a replica may place requests itself while a shared
// scheduler doesn't answer: it has to know the endpoints.
func (p *Pool) StandsIn() bool {
	return p.Scheduler.Kind != KindLLMDHTTP && (len(p.Endpoints) > 0 || p.Discovery != nil)
}

// Plaintext reports whether some EPP on another machine is spoken to without
// TLS.
func (s Shared) Plaintext() bool {
	return slices.ContainsFunc(s.EPP, func(e string) bool { return strings.HasPrefix(e, "grpc://") && !onLoopback(e) })
}

func onLoopback(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// validateShared checks what a pool says of a scheduler in another process.
func (p *Pool) validateShared(c *complaints, bands []Band) {
	s, who := p.Scheduler, "pool "+p.Name+": scheduler"
	switch s.Kind {
	case "", KindEmbedded:
		if !s.empty() {
			c.add("%s: epp, tls, objectives and destinations are those of another process: write kind: llm-d or kind: weir beside them", who)
		}
		return
	case KindLLMD, KindWeir:
		p.validateEPP(c, who)
	case KindLLMDHTTP:
		p.validateEPPGateway(c, who)
	default:
		c.add("%s: kind is %q: write %s", who, s.Kind, strings.Join(kinds(), ", "))
		return
	}
	if s.ConfigFile != "" {
		c.add("%s: config_file sets an embedded scheduler: a shared one has its own", who)
	}
	if s.QueueTTL > maxSharedWait {
		c.add("%s: queue_ttl: for a shared scheduler's answer replicas wait %v at most", who, maxSharedWait)
	}
	if p.Scaling != nil {
		c.add("%s: a shared scheduler keeps its queue to itself: leave scaling out and let the autoscaler read the scheduler's own metrics", who)
	}
	switch {
	case s.Kind != KindWeir:
		s.validateObjectives(c, who, bands)
	case len(s.Objectives) > 0 || s.ObjectivesURL != "" || s.MetricsURL != "":
		c.add("%s: kind weir knows the bands: leave objectives, objectives_url and metrics_url out", who)
	}
	c.webPage(who+": objectives_url", s.ObjectivesURL)
	c.webPage(who+": metrics_url", s.MetricsURL)
}

func (p *Pool) validateEPP(c *complaints, who string) {
	s := p.Scheduler
	if len(s.EPP) == 0 || len(s.EPP) > maxEPPs {
		c.add("%s: epp lists %d processes: write 1 to %d, the one that is wanted first, such as [\"grpcs://epp:9002\"]", who, len(s.EPP), maxEPPs)
	}
	seen := map[string]bool{}
	for _, e := range s.EPP {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "grpcs" && u.Scheme != "grpc" || u.Port() == "" || u.Hostname() == "" || e != u.Scheme+"://"+u.Host {
			c.add("%s: epp %.100q: write grpcs://host:port", who, e)
			continue
		}
		if seen[u.Host] {
			c.add("%s: epp %s is there twice", who, u.Host)
		}
		seen[u.Host] = true
		if u.Scheme == "grpc" && !onLoopback(e) && !s.InsecurePlaintext {
			c.add("%s: epp %s: what is sent there is readable on the way: write grpcs://, or for a test insecure_plaintext: true", who, e)
		}
	}
	if len(s.AllowedDestinations) == 0 && !p.StandsIn() {
		c.add("%s: it may send nowhere: list the pool's endpoints, or the networks of allowed_destinations", who)
	}
	if s.Scheme != "" {
		c.scheme(who, s.Scheme)
	}
	validateDestinations(c, who, s.AllowedDestinations)
	s.TLS.validate(c, who+": tls")
}

func (p *Pool) validateEPPGateway(c *complaints, who string) {
	s := p.Scheduler
	if len(s.EPP) > 0 || s.TLS != nil || s.InsecurePlaintext || len(s.AllowedDestinations) > 0 || s.Scheme != "" {
		c.add("%s: kind llm-d-http asks no EPP: leave epp, tls and destinations out, and list the gateways as the pool's endpoints", who)
	}
	if s.hasBounds() {
		c.add("%s: kind llm-d-http queues nothing here: leave max_concurrency, max_queued and queue_ttl out", who)
	}
	if len(p.Endpoints) == 0 || p.Discovery != nil {
		c.add("%s: kind llm-d-http: list the gateways as the pool's endpoints; ids in their order say which is wanted first", who)
	}
	if p.Isolation == "verified" {
		c.add("%s: kind llm-d-http: what stands behind a gateway can't be probed: isolation can't be verified", who)
	}
}

func (s Scheduling) validateObjectives(c *complaints, who string, bands []Band) {
	known := map[string]bool{}
	for _, b := range bands {
		known[b.Name] = true
	}
	for _, band := range slices.Sorted(maps.Keys(s.Objectives)) {
		if !known[band] {
			c.add("%s: objectives names the band %q, which is not under bands:", who, band)
		}
	}
	names := s.objectives(bands)
	of := map[string]int{}
	for _, b := range bands {
		name := names[b.Priority]
		if !objectiveName.MatchString(name) {
			c.add("%s: the band %s has the InferenceObjective %q: name another under objectives:, of lower-case letters, digits, dots and hyphens", who, b.Name, name)
		}
		if other, taken := of[name]; taken {
			c.add("%s: the bands of priority %d and %d share the InferenceObjective %s: give each its own", who, other, b.Priority, name)
		}
		of[name] = b.Priority
	}
}

func validateDestinations(c *complaints, who string, list []string) {
	if len(list) > maxDestinations {
		c.add("%s: allowed_destinations lists %d: at most %d", who, len(list), maxDestinations)
	}
	for _, d := range list {
		if prefix, err := netip.ParsePrefix(d); err == nil {
			if prefix.Bits() == 0 {
				c.add("%s: allowed_destinations: %s is everywhere: name the engines' networks", who, d)
			}
			continue
		}
		if host, port, err := net.SplitHostPort(d); err != nil || host == "" || port == "" || strings.ContainsAny(d, "/ @?#") {
			c.add("%s: allowed_destinations: %.100q: write a network such as 10.20.0.0/16, or host:port", who, d)
		}
	}
}

func (t *SchedulerTLS) validate(c *complaints, who string) {
	if t == nil {
		return
	}
	if t.CA != "" && t.CAFile != "" {
		c.add("%s: ca and ca_file say the same: keep one", who)
	}
	if t.CA != "" && (len(t.CA) > maxPEM || !x509.NewCertPool().AppendCertsFromPEM([]byte(t.CA))) {
		c.add("%s: ca has no certificate: write it as PEM", who)
	}
	if strings.Contains(t.CA, "PRIVATE KEY") {
		c.add("%s: ca holds a private key, which doesn't belong into a catalogue: treat it as known", who)
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		c.add("%s: cert_file and key_file go together", who)
	}
}

// webPage checks a URL that our own credentials may go to.
func (c *complaints) webPage(who, text string) {
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "":
		c.add("%s is %.100q: write https://host:port/path, without secrets", who, text)
	case u.Scheme == "http" && !onLoopback(text) && strings.HasSuffix(who, "objectives_url"):
		c.add("%s: a token goes there: write https://", who)
	}
}
