package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// File is a list of endpoints in the form of llm-d's file discovery, YAML or
// JSON:
//
//	endpoints:
//	- {name: a, namespace: prod, address: 10.0.0.1, port: "8000", labels: {llm-d.ai/role: decode}}
//
// It is read again when it has changed. Replace it by renaming another file
// over it, so that nobody reads half of it. A file that is missing, too large
// or malformed leaves the last good set; entries that are wrong are skipped
// and logged.
type File struct {
	Path   string
	Scheme string        // of the endpoints' URLs (http)
	Every  time.Duration // how often the file is looked at (1 s)
}

var _ Source = File{}

const (
	maxFile = 1 << 20
	// Two writes within a file system's clock tick can't be told apart by their
	// time, so a file is read again until its time is older than racy.
	racy = 2 * time.Second
)

var (
	errFileSize  = errors.New("over 1 MiB")
	errFileEmpty = errors.New("it has no list of endpoints")
	errNoneGood  = errors.New("none of its entries is right")
)

// Watch looks at the file until ctx ends. It asks the file system instead of
// being told, because notices get lost on network volumes and where a link in
// the path is switched, as Kubernetes does it.
func (f File) Watch(ctx context.Context, log *slog.Logger, report func([]Found)) {
	log = log.With("file", f.Path)
	tick := time.NewTicker(cmp.Or(f.Every, time.Second))
	defer tick.Stop()
	var seen os.FileInfo
	complaint := ""
	for {
		info, err := os.Stat(f.Path)
		if err != nil || changed(seen, info) {
			var found []Found
			var bad []error
			if err == nil {
				seen = info
				found, bad, err = f.read()
			}
			complaint = f.tell(log, complaint, err, bad)
			if err == nil {
				report(found)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func changed(seen, info os.FileInfo) bool {
	return seen == nil || !os.SameFile(seen, info) || seen.Size() != info.Size() ||
		!seen.ModTime().Equal(info.ModTime()) || time.Since(info.ModTime()) < racy
}

// tell logs what is wrong, once for as long as it stays the same.
func (f File) tell(log *slog.Logger, last string, err error, bad []error) string {
	complaint := ""
	if all := errors.Join(append(bad, err)...); all != nil {
		complaint = all.Error()
	}
	switch {
	case complaint == last:
	case err != nil:
		log.Warn("the file of endpoints can't be used: the last good set stays", "error", complaint)
	case complaint != "":
		log.Warn("entries of the file of endpoints are skipped", "error", complaint)
	}
	return complaint
}

// read returns the endpoints of the file, and what is wrong with those that it
// leaves out.
func (f File) read() (found []Found, bad []error, err error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, nil, err
	case len(raw) > maxFile:
		return nil, nil, errFileSize
	}
	return f.parse(raw)
}

// entry is one endpoint in llm-d's form. Ports are strings there; a number is
// understood too.
type entry struct {
	Name        string            `yaml:"name"`
	Namespace   string            `yaml:"namespace"`
	Address     string            `yaml:"address"`
	Port        string            `yaml:"port"`
	Labels      map[string]string `yaml:"labels"`
	MetricsHost string            `yaml:"metricsHost"`
}

func (f File) parse(raw []byte) (found []Found, bad []error, err error) {
	var doc struct {
		Endpoints *[]entry `yaml:"endpoints"`
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, nil, err
	}
	if doc.Endpoints == nil {
		return nil, nil, errFileEmpty // an empty list says that there is none; no list says nothing
	}
	ids := map[string]bool{}
	for i, e := range *doc.Endpoints {
		one, err := e.found(cmp.Or(f.Scheme, "http"))
		switch {
		case err != nil:
			bad = append(bad, fmt.Errorf("entry %d (%s): %w", i+1, e.Name, err))
		case ids[one.ID]:
			bad = append(bad, fmt.Errorf("entry %d: %s is there twice", i+1, one.ID))
		case len(found) == maxFound:
			return found, append(bad, fmt.Errorf("only the first %d endpoints count", maxFound)), nil
		default:
			ids[one.ID] = true
			found = append(found, one)
		}
	}
	if len(found) == 0 && len(bad) > 0 {
		return nil, bad, errNoneGood
	}
	return found, bad, nil
}

var (
	errEntryName    = errors.New("it needs a name of at most 200 printable characters")
	errEntryAddress = errors.New("address must be an IP address or a host name")
	errEntryPort    = errors.New("port must be a number from 1 to 65535")
)

func (e entry) found(scheme string) (Found, error) {
	id := e.Name
	if e.Namespace != "" {
		id = e.Namespace + "/" + e.Name
	}
	if e.Name == "" || !printable(id) {
		return Found{}, errEntryName
	}
	if !hostName(e.Address) {
		return Found{}, errEntryAddress
	}
	if !portNumber(e.Port) {
		return Found{}, errEntryPort
	}
	one := Found{ID: id, URL: scheme + "://" + net.JoinHostPort(e.Address, e.Port), Labels: e.Labels}
	if e.MetricsHost == "" {
		return one, nil
	}
	host, port, err := net.SplitHostPort(e.MetricsHost)
	if err != nil {
		host, port = e.MetricsHost, e.Port
	}
	if !hostName(host) || !portNumber(port) {
		return Found{}, fmt.Errorf("metricsHost: %w", errEntryAddress)
	}
	one.MetricsURL = scheme + "://" + net.JoinHostPort(host, port) + "/metrics"
	return one, nil
}

// printable reports whether an id can stand in logs and metrics.
func printable(id string) bool {
	for _, r := range id {
		if r <= ' ' || r == 0x7f || !strconv.IsPrint(r) {
			return false
		}
	}
	return id != "" && len(id) <= 200
}

// hostName reports whether s is an IP address or a host's name, with nothing
// about it that could mean another place in a URL.
func hostName(s string) bool {
	if net.ParseIP(s) != nil {
		return true
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 253
}

func portNumber(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}
