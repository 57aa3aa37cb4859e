package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// shape is a kind of request.
type shape struct {
	body   []byte
	stream bool
	path   string // empty: Chat's
}

func newShape(model string, promptBytes int, stream bool) shape {
	const words = "the river follows the old mill and "
	prompt := strings.Repeat(words, promptBytes/len(words)+1)[:promptBytes]
	body := `{"model":"` + model + `","messages":[{"role":"user","content":"` + prompt + `"}],"max_tokens":64`
	if stream {
		body += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return shape{body: []byte(body + "}"), stream: stream}
}

// paced reports whether the engine takes its time.
func (s shape) paced() bool { return bytes.Contains(s.body, []byte(`"`+pacedModel+`"`)) }

// sample is what one exchange took.
type sample struct {
	first time.Duration // to the first byte of the body
	total time.Duration
}

// client sends requests and checks every answer: a fast wrong answer is no
// answer.
type client struct {
	http *http.Client
}

func newClient() *client { return &client{http: &http.Client{Transport: newTransport()}} }

// start sends a request and returns its answer's body.
func (c *client) start(ctx context.Context, t *target, s shape) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url+cmp.Or(s.path, "/v1/chat/completions"), bytes.NewReader(s.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if t.key != "" {
		req.Header.Set("Authorization", "Bearer "+t.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 2048))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s answered %d: %s", t.name, resp.StatusCode, text)
	}
	return resp.Body, nil
}

// exchange makes one request from begin on and reads its answer into buf, which
// it returns for the next use.
func (c *client) exchange(ctx context.Context, t *target, s shape, begin time.Time, buf []byte) (sample, []byte, error) {
	body, err := c.start(ctx, t, s)
	if err != nil {
		return sample{}, buf, err
	}
	defer body.Close()
	var out sample
	buf = buf[:0]
	for {
		buf = slices.Grow(buf, 16<<10)
		n, err := body.Read(buf[len(buf):cap(buf)])
		if n > 0 && out.first == 0 {
			out.first = time.Since(begin)
		}
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, buf, fmt.Errorf("%s cut an answer: %w", t.name, err)
		}
	}
	out.total = time.Since(begin)
	return out, buf, t.check(s, buf)
}

// check is the gate that every answer must pass.
func (t *target) check(s shape, answer []byte) error {
	if s.path == responsesPath {
		return t.checkResponse(answer)
	}
	if !bytes.Contains(answer, fmt.Appendf(nil, `"completion_tokens":%d`, outputTokens)) {
		return fmt.Errorf("%s gave an answer without usage: %.300s", t.name, answer)
	}
	if !s.stream {
		return nil
	}
	if !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("data: [DONE]")) {
		return fmt.Errorf("%s ended a stream without [DONE]: %.300q", t.name, answer[max(len(answer)-300, 0):])
	}
	if n := bytes.Count(answer, []byte(`"content":" word`)); n != streamEvents {
		return fmt.Errorf("%s gave %d of %d events", t.name, n, streamEvents)
	}
	return nil
}

// run is what a number of exchanges took.
type run struct {
	wall    time.Duration
	samples []sample
}

// closed makes n exchanges from so many callers, each of which waits for its
// answer before it asks again.
func (c *client) closed(ctx context.Context, t *target, s shape, callers, n int) (run, error) {
	var next atomic.Int64
	var mu sync.Mutex
	var out run
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range callers {
		g.Go(func() error {
			var mine []sample
			var buf []byte
			for next.Add(1) <= int64(n) {
				var one sample
				var err error
				if one, buf, err = c.exchange(ctx, t, s, time.Now(), buf); err != nil {
					return err
				}
				mine = append(mine, one)
			}
			mu.Lock()
			defer mu.Unlock()
			out.samples = append(out.samples, mine...)
			return nil
		})
	}
	err := g.Wait()
	out.wall = time.Since(begin)
	return out, err
}

// open makes n exchanges at a fixed rate, whether or not the earlier ones have
// ended, and measures each from the moment at which it should have begun: a
// target that stalls can't hide it by slowing its callers.
func (c *client) open(ctx context.Context, t *target, s shape, perSecond float64, n int) (run, error) {
	const mostAtOnce = 512
	out := run{samples: make([]sample, n)}
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(mostAtOnce)
	for i := range n {
		due := begin.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
		if err := pause(ctx, time.Until(due)); err != nil {
			break
		}
		g.Go(func() error {
			var err error
			out.samples[i], _, err = c.exchange(ctx, t, s, due, nil)
			return err
		})
	}
	err := g.Wait()
	out.wall = time.Since(begin)
	return out, err
}

// hold opens n streams and reads the first event of each. Calling leave drops
// them all.
func (c *client) hold(ctx context.Context, t *target, s shape, n int) (leave func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	bodies := make([]io.ReadCloser, n)
	leave = func() {
		cancel()
		for _, b := range bodies {
			if b != nil {
				_ = b.Close()
			}
		}
	}
	var g errgroup.Group
	g.SetLimit(64)
	for i := range n {
		g.Go(func() (err error) {
			if bodies[i], err = c.start(ctx, t, s); err != nil {
				return err
			}
			return readEvents(bodies[i], 1)
		})
	}
	return leave, g.Wait()
}

// leaveAfter opens n streams at once and drops each after so many events.
func (c *client) leaveAfter(ctx context.Context, t *target, s shape, n, events int) error {
	g, ctx := errgroup.WithContext(ctx)
	for range n {
		g.Go(func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			body, err := c.start(ctx, t, s)
			if err != nil {
				return err
			}
			err = readEvents(body, events)
			cancel() // first: a plain Close would read on for a while to save the connection
			_ = body.Close()
			return err
		})
	}
	return g.Wait()
}

// readEvents reads so many whole events with content.
func readEvents(r io.Reader, events int) error {
	buf := make([]byte, 0, 16<<10)
	for bytes.Count(buf, []byte("\n\n")) < events {
		buf = slices.Grow(buf, 4<<10)
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			return fmt.Errorf("a stream ended early: %w", err)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
