package llmd

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ObjectiveSource says where it can be learned which InferenceObjectives there
// are. An Endpoint Picker knows priorities by their names alone, and one that it
// doesn't know silently counts as 0.
type ObjectiveSource struct {
	// ListURL is where Kubernetes lists them. Empty: in the cluster in which this
	// process runs, the list of its own namespace.
	ListURL string
	// MetricsURL is the picker's own page, whose labels show the priorities that
	// it keeps queues for: less, but where there is no Kubernetes the most.
	MetricsURL string
	// Account is the folder of this process' service account. The token in it
	// goes to no server but those whose certificate the cluster's CA signed.
	Account string
}

// Objectives is what is known of a picker's objectives.
type Objectives struct {
	By         string         // who said so
	Priorities map[string]int // by name; nil where only priorities are known
	Known      map[int]bool   // the priorities
}

// ErrObjectivesUnknown is the error of Find where there is nobody to ask.
var ErrObjectivesUnknown = errors.New("nobody tells which InferenceObjectives there are: set objectives_url or metrics_url")

const (
	account       = "/var/run/secrets/kubernetes.io/serviceaccount"
	inCluster     = "https://kubernetes.default.svc/apis/llm-d.ai/v1alpha2/namespaces/%s/inferenceobjectives"
	maxPage       = 8 << 20
	objectiveWait = 5 * time.Second
)

var (
	flowMetric    = regexp.MustCompile(`^[a-z_]*flow_control_[a-z_]+\{`)
	priorityLabel = regexp.MustCompile(`[{,]priority="(-?[0-9]{1,9})"`)
)

// Find asks Kubernetes, else the picker's metrics.
func (s ObjectiveSource) Find(ctx context.Context) (Objectives, error) {
	ctx, cancel := context.WithTimeout(ctx, objectiveWait)
	defer cancel()
	if s.Account == "" {
		s.Account = account
	}
	list := s.ListURL
	if list == "" {
		if namespace, err := os.ReadFile(filepath.Join(s.Account, "namespace")); err == nil {
			list = fmt.Sprintf(inCluster, strings.TrimSpace(string(namespace)))
		}
	}
	switch {
	case list != "":
		return s.fromKubernetes(ctx, list)
	case s.MetricsURL != "":
		return fromMetrics(ctx, s.MetricsURL)
	default:
		return Objectives{}, ErrObjectivesUnknown
	}
}

func (s ObjectiveSource) fromKubernetes(ctx context.Context, url string) (Objectives, error) {
	client, token, err := s.credentials(url)
	if err != nil {
		return Objectives{}, err
	}
	body, err := page(ctx, client, url, token)
	if err != nil {
		return Objectives{}, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				Priority int `json:"priority"` // none is 0
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return Objectives{}, fmt.Errorf("list of InferenceObjectives: %w", err)
	}
	o := Objectives{By: "kubernetes", Priorities: make(map[string]int), Known: make(map[int]bool)}
	for _, item := range list.Items {
		o.Priorities[item.Metadata.Name] = item.Spec.Priority
		o.Known[item.Spec.Priority] = true
	}
	return o, nil
}

// credentials are those of the service account, for servers of its cluster.
func (s ObjectiveSource) credentials(url string) (*http.Client, string, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	token, err := os.ReadFile(filepath.Join(s.Account, "token"))
	if errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(url, "https://") {
		return client, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("service account: %w", err)
	}
	pem, err := os.ReadFile(filepath.Join(s.Account, "ca.crt"))
	if err != nil {
		return nil, "", fmt.Errorf("service account: %w", err)
	}
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem)
	return client, strings.TrimSpace(string(token)), nil
}

// fromMetrics reads the priorities that the picker's flow control has queues
// for.
func fromMetrics(ctx context.Context, url string) (Objectives, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	body, err := page(ctx, client, url, "")
	if err != nil {
		return Objectives{}, err
	}
	o := Objectives{By: "metrics", Known: make(map[int]bool)}
	lines := bufio.NewScanner(strings.NewReader(string(body)))
	lines.Buffer(nil, maxPage)
	for lines.Scan() {
		if !flowMetric.MatchString(lines.Text()) {
			continue
		}
		if found := priorityLabel.FindStringSubmatch(lines.Text()); found != nil {
			priority, err := strconv.Atoi(found[1])
			if err == nil {
				o.Known[priority] = true
			}
		}
	}
	if len(o.Known) == 0 {
		return Objectives{}, fmt.Errorf("%s shows no flow control: %w", url, ErrObjectivesUnknown)
	}
	return o, nil
}

func page(ctx context.Context, client *http.Client, url, token string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s answers %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxPage))
}

// Missing says in words which of the wanted objectives, names by priority, the
// picker treats otherwise than meant. What counts as 0 anyway needs none.
func (o Objectives) Missing(wanted map[int]string) (faults []string) {
	for _, priority := range slices.Backward(slices.Sorted(maps.Keys(wanted))) {
		name := wanted[priority]
		has, there := o.Priorities[name]
		switch {
		case priority == 0 && (!there || has == 0):
		case o.Priorities == nil && !o.Known[priority]:
			faults = append(faults, fmt.Sprintf("the scheduler keeps no queue for the priority %d: create the InferenceObjective %s, or its requests count as 0", priority, name))
		case o.Priorities != nil && !there:
			faults = append(faults, fmt.Sprintf("there is no InferenceObjective %s: create it with the priority %d, or its requests count as 0", name, priority))
		case o.Priorities != nil && has != priority:
			faults = append(faults, fmt.Sprintf("the InferenceObjective %s has the priority %d, not %d", name, has, priority))
		}
	}
	return faults
}
