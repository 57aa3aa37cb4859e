package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"
)

// The headers of llm-d and vLLM that a server obeys.
const (
	prefillHeader = "X-Prefiller-Host-Port"
	rankHeader    = "X-Data-Parallel-Rank"
)

// transfer is what engines say to each other of a prompt's KV cache, in the
// field kv_transfer_params: the wish of who shall compute it, and what that one
// answers. The names are those of vLLM's connectors. Revision is ours: real
// engines find out while they shake hands that they don't understand each other.
type transfer struct {
	DoRemoteDecode  bool    `json:"do_remote_decode"`
	DoRemotePrefill bool    `json:"do_remote_prefill"`
	Engine          *string `json:"remote_engine_id"`
	Blocks          []int   `json:"remote_block_ids"`
	Host            *string `json:"remote_host"`
	Port            *int    `json:"remote_port"`
	Revision        string  `json:"sim_revision,omitempty"`
}

// fetched is a prompt whose cache another engine has made.
type fetched struct {
	cached int // tokens that it had
}

// sidecar reports whether the server has other ones compute prompts when it is
// told to, as a decode server does with llm-d's sidecar beside it.
func (c Config) sidecar() bool {
	switch c.Role {
	case "decode", "prefill-decode", "both":
		return true
	default:
		return false
	}
}

// fetch asks the server that the request names for the prompt's cache; nil where
// it names none. What that one says of a failure is passed on as it is, which is
// all that llm-d's sidecar does.
func (e *Engine) fetch(ctx context.Context, c *call) (*fetched, error) {
	peer := c.r.Header.Get(prefillHeader)
	if peer == "" || !e.cfg.sidecar() || c.r.URL.Path == "/v1/embeddings" {
		return nil, nil //nolint:nilnil // there is none
	}
	body, err := prefillBody(c.body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+peer+c.r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, badRequest("", "%s: %v", prefillHeader, err)
	}
	req.Header = c.r.Header.Clone()
	req.Header.Del(prefillHeader)
	resp, err := e.peers.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			e.finish(c, "aborted", 0)
			return nil, errCallerLeft
		}
		return nil, &apiError{status: http.StatusBadGateway, kind: "PrefillError", message: "prefill server: " + err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxBodyBytes))
	switch {
	case err != nil:
		return nil, &apiError{status: http.StatusBadGateway, kind: "PrefillError", message: "prefill server: " + err.Error()}
	case resp.StatusCode != http.StatusOK:
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return nil, &apiError{status: resp.StatusCode, kind: "PrefillError", message: gjson.GetBytes(answer, "error.message").Str, retryAfter: after}
	}
	return e.receive(answer)
}

// prefillBody is the request for a prompt's cache: one token, at once.
func prefillBody(body []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := decodeJSON(body, &fields); err != nil {
		return nil, err
	}
	wish, err := json.Marshal(transfer{DoRemoteDecode: true})
	if err != nil {
		return nil, err
	}
	one := json.RawMessage("1")
	fields["kv_transfer_params"], fields["stream"] = wish, json.RawMessage("false")
	fields["max_tokens"], fields["max_completion_tokens"], fields["max_output_tokens"] = one, one, one
	delete(fields, "stream_options")
	delete(fields, "min_tokens")
	return json.Marshal(fields)
}

// receive takes what the other engine says of the cache. One of another revision
// is not understood.
func (e *Engine) receive(answer []byte) (*fetched, error) {
	var t transfer
	found := gjson.GetBytes(answer, "kv_transfer_params")
	if err := json.Unmarshal([]byte(found.Raw), &t); err != nil || !t.DoRemotePrefill || t.Engine == nil {
		return nil, &apiError{status: http.StatusBadGateway, kind: "PrefillError", message: "the prefill server offers no cache"}
	}
	if t.Revision != e.cfg.Revision {
		e.foreign.Add(1)
		return nil, &apiError{
			status: http.StatusInternalServerError, kind: "KVTransferError",
			message: fmt.Sprintf("the cache is of revision %q, and this is %q", t.Revision, e.cfg.Revision),
		}
	}
	e.fetches.Add(1)
	cached := gjson.GetBytes(answer, "usage.prompt_tokens_details.cached_tokens")
	if !cached.Exists() {
		cached = gjson.GetBytes(answer, "usage.input_tokens_details.cached_tokens")
	}
	return &fetched{cached: int(cached.Int())}, nil
}

// offer adds to an answer what another engine needs to fetch the cache.
func (e *Engine) offer(document any, blocks int) (json.RawMessage, error) {
	e.offers.Add(1)
	host, port := "127.0.0.1", 5600
	t := transfer{DoRemotePrefill: true, Engine: &e.id, Host: &host, Port: &port, Revision: e.cfg.Revision}
	for i := range blocks {
		t.Blocks = append(t.Blocks, i)
	}
	text, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	params, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	text = append(text[:len(text)-1], `,"kv_transfer_params":`...)
	return append(append(text, params...), '}'), nil
}

// rank is the machine that the request is for: the one that it names, or the
// one with the least to do.
func (e *Engine) rank(r *http.Request) (*machine, error) {
	named := r.Header.Get(rankHeader)
	if named == "" {
		best, least := e.ranks[0], -1
		for _, m := range e.ranks {
			if running, waiting, _ := m.load(); least < 0 || running+waiting < least {
				best, least = m, running+waiting
			}
		}
		return best, nil
	}
	n, err := strconv.Atoi(named)
	if err != nil || n < 0 || n >= len(e.ranks) {
		return nil, badRequest("data_parallel_rank", "data_parallel_rank %.20s is out of range [0, %d).", named, len(e.ranks))
	}
	return e.ranks[n], nil
}
