package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"weir/scheduler"
	"weir/scheduler/enginesim"
)

// engine is one simulated model server.
type engine struct {
	ip     string
	sim    *enginesim.Engine
	server *http.Server
}

func (e *engine) id() string { return "engine-" + e.ip[strings.LastIndexByte(e.ip, '.')+1:] }

// stage is what a scheduler has before it: engines that listen at one port of
// addresses of their own, since a picker's pool has one port.
type stage struct {
	port    int
	places  int     // of each engine
	reserve float64 // part of them that only the top band may fill
	engines []*engine
	client  *http.Client
}

// build starts engines of a kind, with so many places each.
func build(ctx context.Context, n, places int, cfg enginesim.Config) (*stage, error) {
	s := &stage{places: places, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096}}}
	cfg.MaxNumSeqs, cfg.Models, cfg.KeepRequests = 2*places, []string{"m"}, -1
	for i := range n {
		ip := fmt.Sprintf("127.0.2.%d", i+1)
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(s.port)))
		if err != nil {
			s.close()
			return nil, err
		}
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			s.port = addr.Port
		}
		e := &engine{ip: ip, sim: enginesim.New(cfg)}
		e.server = &http.Server{Handler: e.sim, ReadHeaderTimeout: time.Minute}
		s.engines = append(s.engines, e)
		go func() { _ = e.server.Serve(l) }() // ends with close
	}
	return s, nil
}

func (s *stage) close() {
	for _, e := range s.engines {
		e.sim.Close()
		_ = e.server.Close()
	}
	s.client.CloseIdleConnections()
}

func (s *stage) url(e *engine) string {
	return "http://" + net.JoinHostPort(e.ip, strconv.Itoa(s.port))
}

func (s *stage) endpoints() []scheduler.Endpoint {
	all := make([]scheduler.Endpoint, len(s.engines))
	for i, e := range s.engines {
		all[i] = scheduler.Endpoint{ID: e.id(), URL: s.url(e), MaxConcurrency: s.places}
	}
	return all
}

func (s *stage) known(hostport string) (scheduler.Target, bool) {
	for _, e := range s.engines {
		if net.JoinHostPort(e.ip, strconv.Itoa(s.port)) == hostport {
			return scheduler.Target{Endpoint: e.id(), URL: s.url(e)}, true
		}
	}
	return scheduler.Target{}, false
}

// ask is one request of the benchmark.
type ask struct {
	id, tenant, session string
	band, turn          int
	prompt              string
	answer              int // tokens
}

func (a *ask) request() scheduler.Request {
	body := fmt.Appendf(nil, `{"ignore_eos":true,"max_tokens":%d,"messages":[{"content":%q,"role":"user"}],"min_tokens":%d,"model":"m","stream":true,"stream_options":{"include_usage":true}}`, a.answer, a.prompt, a.answer)
	return scheduler.Request{
		ID: a.id, Flow: scheduler.Flow{FairnessID: a.tenant, Band: a.band}, Session: a.session, Turn: a.turn, Model: "m",
		Body: body, Prompt: [][]byte{[]byte(a.prompt)}, InputTokens: len(a.prompt) / 4, OutputTokens: a.answer, Streams: true,
	}
}

// served is what came of a request.
type served struct {
	ttft           time.Duration // from its coming to its first token
	prompt, cached int64
	answer         int64
}

// serve schedules a request and streams its answer.
func (s *stage) serve(ctx context.Context, by scheduler.Scheduler, a ask) (got served, err error) {
	began := time.Now()
	lease, err := by.Schedule(ctx, a.request())
	if err != nil {
		return got, err
	}
	outcome := scheduler.Outcome{Result: scheduler.Abandoned}
	defer func() { lease.End(outcome) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, lease.Targets()[0].URL+"/v1/chat/completions", bytes.NewReader(lease.Body()))
	if err != nil {
		return got, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return got, fmt.Errorf("the engine answers %d: %s", resp.StatusCode, text)
	}
	lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
	events := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		event, err := events.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF):
			outcome = scheduler.Outcome{
				Result: scheduler.Completed, InputTokens: int(got.prompt - got.cached), CachedTokens: int(got.cached), OutputTokens: int(got.answer),
			}
			return got, nil
		case err != nil:
			return got, err
		case len(event) < 2:
			continue
		}
		if got.ttft == 0 && bytes.Contains(event, []byte(`"content":"`)) && !bytes.Contains(event, []byte(`"content":""`)) {
			got.ttft = time.Since(began)
			lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		}
		if usage := gjson.GetBytes(bytes.TrimPrefix(event, []byte("data: ")), "usage"); usage.IsObject() {
			got.prompt, got.answer = usage.Get("prompt_tokens").Int(), usage.Get("completion_tokens").Int()
			got.cached = usage.Get("prompt_tokens_details.cached_tokens").Int()
		}
		lease.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: append(bytes.TrimRight(event, "\n"), "\n\n"...)})
	}
}
