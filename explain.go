package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"weir/gateway"
)

// explanation is what one replica knows of a request: the answer of
// /ops/v1/decisions.
type explanation struct {
	Replica   string             `json:"replica,omitempty"` // which address said so
	Decisions []gateway.Decision `json:"decisions"`
	Waiting   *gateway.Waiting   `json:"waiting,omitempty"`
}

func (e explanation) empty() bool { return len(e.Decisions) == 0 && e.Waiting == nil }

const (
	explainTimeout = 5 * time.Second
	maxExplanation = 16 << 20 // bytes of one answer
)

func explainCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain REQUEST_ID",
		Short: "Say why a request waited and where it went",
		Long: `Ask every replica's operators' listener why a request waited, and where it went.

REQUEST_ID is the x-request-id header of the answer. Addresses come from
WEIR_OPS_URLS (comma-separated; by default this machine's ops_addr), the token
from WEIR_OPS_TOKEN. Replicas remember their latest decisions only.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := configuration(cmd)
			if err != nil {
				return err
			}
			if c.OpsToken == "" {
				return errors.New("WEIR_OPS_TOKEN is not set: it is the token of the replicas' /ops/v1")
			}
			addresses, err := opsAddresses(c)
			if err != nil {
				return err
			}
			known, failed := askAll(cmd.Context(), addresses, c.OpsToken, args[0])
			for _, err := range failed {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", err)
			}
			switch {
			case len(failed) == len(addresses):
				return errors.New("no address answered: set WEIR_OPS_URLS to the replicas' operators' listeners")
			case len(known) == 0:
				return unknownRequest(args[0], len(addresses)-len(failed), len(failed))
			case asJSON:
				return json.NewEncoder(cmd.OutOrStdout()).Encode(known)
			}
			return printExplanations(cmd.OutOrStdout(), known)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON: what each replica knows")
	return cmd
}

// unknownRequest says what it can mean that nobody knows a request.
func unknownRequest(id string, asked, silent int) error {
	missing := ""
	if silent > 0 {
		missing = fmt.Sprintf(" (%d more did not answer)", silent)
	}
	return fmt.Errorf("none of %d replicas%s remembers a decision on %s: it is forgotten, was refused before it came to a queue, or is not ours; `weir receipts --request` may still know it",
		asked, missing, id)
}

// opsAddresses are the base URLs to ask.
func opsAddresses(c *Config) ([]string, error) {
	urls := c.OpsURLs
	if len(urls) == 0 {
		host, port, err := net.SplitHostPort(c.OpsAddr)
		if err != nil {
			return nil, fmt.Errorf("ops_addr: %w", err)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		urls = []string{"http://" + net.JoinHostPort(host, port)}
	}
	return urls, nil
}

// parseOpsURLs reads the replicas' addresses.
func parseOpsURLs(text string) ([]string, error) {
	var urls []string
	for _, address := range parseList(text) {
		if !strings.Contains(address, "://") {
			address = "http://" + address
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, errors.New("write addresses such as http://10.0.0.3:9090, comma-separated and without secrets")
		}
		urls = append(urls, strings.TrimRight(address, "/"))
	}
	return urls, nil
}

// askAll asks all addresses at once. Known is what those say who know
// something, in the order of the addresses.
func askAll(ctx context.Context, addresses []string, token Secret, request string) (known []explanation, failed []error) {
	answers, faults := make([]explanation, len(addresses)), make([]error, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() { answers[i], faults[i] = askOne(ctx, address, token, request) })
	}
	wg.Wait()
	for i, a := range answers {
		if faults[i] != nil {
			failed = append(failed, faults[i])
		} else if !a.empty() {
			a.Replica = addresses[i]
			known = append(known, a)
		}
	}
	return known, failed
}

func askOne(ctx context.Context, address string, token Secret, request string) (e explanation, err error) {
	err = askOps(ctx, address, token, "/ops/v1/decisions?request="+url.QueryEscape(request), &e)
	return e, err
}

// askOps reads a page of a replica's operators' listener.
func askOps(ctx context.Context, address string, token Secret, page string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+page, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return fmt.Errorf("%s refuses the token: WEIR_OPS_TOKEN differs from the replica's", address)
	default:
		return fmt.Errorf("%s answers %s: is it the operators' listener of this version?", address, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxExplanation)).Decode(into); err != nil {
		return fmt.Errorf("%s: read its answer: %w", address, err)
	}
	return nil
}
