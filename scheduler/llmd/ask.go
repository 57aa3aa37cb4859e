package llmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	extprocconfig "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// maxMessage bounds one message from a picker: pieces of bodies have 62,000
// bytes, headers are an echo of the few that were sent.
const maxMessage = 1 << 20

type stream = extprocv3.ExternalProcessor_ProcessClient

// ask sends the request and waits for the decision. Ctx is the stream's: it
// lives on with the lease.
func (c *Client) ask(ctx context.Context, peer Peer, r *scheduler.Request) (*lease, error) {
	s, err := extprocv3.NewExternalProcessorClient(peer.Conn()).Process(c.announce(ctx), callOptions()...)
	if err != nil {
		return nil, failed(err)
	}
	if err := c.send(s, r); err != nil && !errors.Is(err, io.EOF) { // io.EOF: the reason is there to be read
		return nil, failed(err)
	}
	answer := extproc.NewAnswer(r.Body)
	for !answer.Done() {
		m, err := s.Recv()
		if err != nil {
			return nil, failed(err)
		}
		if refusal := m.GetImmediateResponse(); refusal != nil {
			return nil, c.decline(refusal)
		}
		if err := answer.Take(m); err != nil {
			return nil, err
		}
	}
	if c.cfg.Own && c.epochs.stale(answer.Epoch, c.cfg.Now()) {
		return nil, &lostError{errStale}
	}
	targets, err := c.targets(answer)
	if err != nil {
		return nil, err
	}
	l := &lease{
		client: c, peer: peer, stream: s, targets: targets, body: answer.Body(), evicted: make(chan struct{}),
		session: r.Session, band: r.Flow.Band, streams: r.Streams, at: c.cfg.Now,
	}
	l.heard(answer.Queued)
	return l, nil
}

// announce says to a `weir scheduler` which pool is meant, and that it is a
// gateway who speaks.
func (c *Client) announce(ctx context.Context) context.Context {
	if !c.cfg.Own {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, extproc.PoolKey, c.cfg.Pool, extproc.GatewayKey, "1")
}

// decline reads a refusal. A picker that is going away has decided nothing.
func (c *Client) decline(m *extprocv3.ImmediateResponse) error {
	refusal := extproc.ReadRefusal(m)
	if refusal.Reason == scheduler.ShuttingDown {
		return &lostError{refusal}
	}
	return refusal
}

// send sends headers and body. The end is on the last piece of the body: a
// picker takes a request without one for a GET and sends it anywhere.
func (c *Client) send(s stream, r *scheduler.Request) error {
	h := c.headers(r)
	if err := s.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: h.Map()}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  extprocconfig.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode: extprocconfig.ProcessingMode_FULL_DUPLEX_STREAMED,
		},
	}); err != nil {
		return err
	}
	for piece, last := range extproc.Chunks(r.Body, extproc.MaxChunk) {
		if err := s.Send(&extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: piece, EndOfStream: last}},
		}); err != nil {
			return err
		}
	}
	return nil
}

// headers are all that a picker learns beside the body. Each name stands
// here: nothing of the caller's own headers comes this way.
func (c *Client) headers(r *scheduler.Request) *extproc.Headers {
	var h extproc.Headers
	h.Add(extproc.Method, "POST")
	h.Add(extproc.Path, r.EnginePath())
	h.Add(extproc.ContentType, "application/json")
	h.Add(extproc.RequestID, r.ID)
	h.Add(extproc.FairnessID, r.Flow.FairnessID)
	h.Add(extproc.FairnessIDOld, r.Flow.FairnessID)
	objective := c.cfg.Objectives[r.Flow.Band]
	h.Add(extproc.Objective, objective)
	h.Add(extproc.ObjectiveOld, objective)
	if r.TTL > 0 {
		h.Add(extproc.QueueTTL, r.TTL.String())
	}
	if r.TTFT > 0 {
		wanted := milliseconds(r.TTFT - c.waited(r))
		h.Add(extproc.WantedTTFT, wanted)
		h.Add(extproc.WantedTTFTOld, wanted)
	}
	if r.Session != "" {
		h.Add(extproc.SessionID, digest(r.Session))
		h.Add(extproc.SessionToken, c.sessions.token(r.Session))
	}
	if c.cfg.Own {
		facts := extproc.FactsOf(r, c.cfg.Now())
		facts.Encode(&h)
	}
	return &h
}

// waited is how long the request has waited in earlier attempts.
func (c *Client) waited(r *scheduler.Request) time.Duration {
	if r.QueuedAt.IsZero() {
		return 0
	}
	return max(0, c.cfg.Now().Sub(r.QueuedAt))
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

// digest names a session without telling whose it is.
func digest(session string) string {
	sum := sha256.Sum256([]byte(session))
	return hex.EncodeToString(sum[:16])
}

// targets are the destinations that the pool knows. Every host that a request
// may reach through them, a prefill server's too, has to be one of the pool's:
// the prompt goes there.
func (c *Client) targets(a *extproc.Answer) ([]scheduler.Target, error) {
	var prefill *scheduler.Target
	for _, h := range a.Headers {
		if h[0] == extproc.DataParallelRank {
			if _, err := strconv.ParseUint(h[1], 10, 16); err != nil {
				return nil, fmt.Errorf("%w: rank %q", extproc.ErrGarbage, h[1])
			}
			continue
		}
		hosts, err := extproc.SplitHosts(h[1])
		if err != nil {
			return nil, fmt.Errorf("header %s: %w", h[0], err)
		}
		for _, host := range hosts {
			t, ok := c.cfg.Allowed(host)
			if !ok {
				return nil, fmt.Errorf("%w: %s in %s", ErrForeign, host, h[0])
			}
			if h[0] == extproc.Prefiller {
				prefill = &t
			}
		}
	}
	targets := make([]scheduler.Target, 0, len(a.Destinations))
	for _, host := range a.Destinations {
		if t, ok := c.cfg.Allowed(host); ok {
			t.Headers, t.Prefill = append(slices.Clip(t.Headers), a.Headers...), prefill
			targets = append(targets, t)
		}
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrForeign, a.Destinations[0])
	}
	return targets, nil
}
