package catalogue

import (
	"cmp"
	"time"
)

// Discovery is where endpoints are found that the catalogue doesn't list: a
// file or a DNS name.
type Discovery struct {
	File *FileDiscovery `yaml:"file,omitempty"`
	DNS  *DNSDiscovery  `yaml:"dns,omitempty"`

	// Endpoint is what all that is found has in common: everything but id, url
	// and drain. A file's labels go before it.
	Endpoint Endpoint `yaml:"endpoint,omitempty"`
	// Drain lists the ids of found endpoints that take nothing new. Nil leaves
	// the list as it is in the database.
	Drain []string `yaml:"drain,omitempty"`
}

// FileDiscovery is a watched file in the form of llm-d's file discovery.
type FileDiscovery struct {
	Path   string `yaml:"path"`
	Scheme string `yaml:"scheme,omitempty"` // http (default) or https
}

// DNSDiscovery is a name that is looked up again and again.
type DNSDiscovery struct {
	Name     string        `yaml:"name"`
	Port     int           `yaml:"port,omitempty"`     // of the endpoints, unless srv
	Scheme   string        `yaml:"scheme,omitempty"`   // http (default) or https
	Interval time.Duration `yaml:"interval,omitempty"` // 5s
	SRV      bool          `yaml:"srv,omitempty"`      // look up SRV records instead of addresses
}

const (
	maxDrained     = 1000
	minDNSInterval = time.Second
	minScrape      = 10 * time.Millisecond
)

// complete fills in what follows from the rest.
func (d *Discovery) complete() {
	if d == nil {
		return
	}
	d.Endpoint.Engine = cmp.Or(d.Endpoint.Engine, "vllm")
	if d.File != nil {
		d.File.Scheme = cmp.Or(d.File.Scheme, "http")
	}
	if d.DNS != nil {
		d.DNS.Scheme = cmp.Or(d.DNS.Scheme, "http")
	}
}

// validateSettings checks what a pool says beside its queues and endpoints.
func (p Pool) validateSettings(c *complaints) {
	who := "pool " + p.Name
	c.keyVariable(who, p.APIKeyEnv)
	if p.ScrapeInterval != 0 && p.ScrapeInterval < minScrape {
		c.add("%s: scrape_interval is %s: at least %s", who, p.ScrapeInterval, minScrape)
	}
	if s := p.Scaling; s != nil {
		s.validate(c, who+": scaling")
	}
	if d := p.Discovery; d != nil {
		d.validate(c, who+": discovery")
	}
}

func (d Discovery) validate(c *complaints, who string) {
	if (d.File == nil) == (d.DNS == nil) {
		c.add("%s: name one of file and dns", who)
	}
	if f := d.File; f != nil {
		if f.Path == "" {
			c.add("%s: file: path is missing", who)
		}
		c.scheme(who+": file", f.Scheme)
	}
	if n := d.DNS; n != nil {
		n.validate(c, who+": dns")
	}
	if e := d.Endpoint; e.ID != "" || e.URL != "" || e.Drain != nil {
		c.add("%s: endpoint: id, url and drain are those of one endpoint, not of all", who)
	}
	d.Endpoint.validateTraits(c, who+": endpoint")
	if len(d.Drain) > maxDrained {
		c.add("%s: drain lists %d endpoints: at most %d", who, len(d.Drain), maxDrained)
	}
}

func (n DNSDiscovery) validate(c *complaints, who string) {
	if n.Name == "" {
		c.add("%s: name is missing", who)
	}
	switch {
	case n.SRV && n.Port != 0:
		c.add("%s: SRV records have ports of their own: leave port out", who)
	case !n.SRV && (n.Port < 1 || n.Port > 65535):
		c.add("%s: port is %d: write the one on which the servers listen", who, n.Port)
	}
	c.scheme(who, n.Scheme)
	if n.Interval != 0 && n.Interval < minDNSInterval {
		c.add("%s: interval is %s: at least %s", who, n.Interval, minDNSInterval)
	}
}

func (c *complaints) scheme(who, scheme string) {
	if scheme != "http" && scheme != "https" {
		c.add("%s: scheme is %q: write http or https", who, scheme)
	}
}
