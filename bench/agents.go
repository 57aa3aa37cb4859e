package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/bench/proc"
)

// agentCatalogue is a pool of eight engines, with the scheduler as it is
// without a document.
func agentCatalogue(addr string) string {
	var w strings.Builder
	w.WriteString(`apiVersion: weir/v1
bands:
  - {name: standard, priority: 0}
plans:
  agents:
    bands: {default: standard}
    weight: 1
    fairness: tenant
    limits: {requests_per_minute: 100000000, concurrency: 1000000}
    key_limits: {requests_per_minute: 100000000, concurrency: 1000000}
pools:
  - name: engines
    scheduler: {max_concurrency: 256}
    endpoints:
`)
	for i := range agentEngines {
		fmt.Fprintf(&w, "      - {id: e%d, url: \"http://%s/e/%d\", engine: vllm}\n", i, addr, i)
	}
	w.WriteString(`models:
  - {name: agents, operations: [chat], context_length: 131072, routes: [{pool: engines}]}
prices:
  - {model: agents, input: "0.10", cached_input: "0.02", output: "0.40"}
`)
	return w.String()
}

// crowd is agents that run one session each: so many turns, each with all that
// came before in its prompt, and a tool's run between two.
type crowd struct {
	agents, turns int
	spread        time.Duration // the agents begin within it
	tool          time.Duration // mean; each from half of it to half more
	target        func(agent int) *target
	client        *client
}

// What a session's prompt is made of, in bytes.
const (
	agentCommon = 8 << 10 // instructions and tools, the same for all
	agentOpened = 8 << 10 // the session's own first message
	agentResult = 1600    // a tool's output
	agentCycle  = 15      // seconds that a turn and a tool take together: 3,000 agents make 200 turns a second
)

// turn is what one turn took.
type turn struct {
	first, total  time.Duration // as the client saw it
	engine, begun time.Duration // of these the engine's: until the last piece, until the first
	queued        time.Duration // as the gateway said
}

// ours is what of the turn was neither the engine's nor the queue's: gateway,
// connections, and waiting for a core.
func (t turn) ours() time.Duration { return max(t.total-t.engine-t.queued, 0) }

// run runs all agents to the end of their sessions.
func (c crowd) run(ctx context.Context) ([]turn, error) {
	var mu sync.Mutex
	var all []turn
	g, ctx := errgroup.WithContext(ctx)
	for i := range c.agents {
		g.Go(func() error {
			mine, err := c.session(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
			return err
		})
	}
	err := g.Wait()
	return all, err
}

func (c crowd) session(ctx context.Context, agent int) ([]turn, error) {
	rnd := rand.New(rand.NewPCG(uint64(agent), 4))
	if err := pause(ctx, time.Duration(rnd.Float64()*float64(c.spread))); err != nil {
		return nil, err
	}
	messages := openingMessages(agent)
	var turns []turn
	var buf []byte
	for i := range c.turns {
		if i > 0 {
			if err := pause(ctx, time.Duration((.5+rnd.Float64())*float64(c.tool))); err != nil {
				return turns, err
			}
		}
		var t turn
		var err error
		if t, buf, err = c.turn(ctx, c.target(agent), messages, buf); err != nil {
			return turns, fmt.Errorf("agent %d, turn %d: %w", agent, i+1, err)
		}
		turns = append(turns, t)
		messages = append(messages, `,{"role":"assistant","content":"`...)
		messages = append(messages, strings.Repeat(agentSentence, agentChunks-2)...)
		messages = append(messages, `"},{"role":"user","content":"`...)
		messages = appendNoise(messages, rnd, agentResult)
		messages = append(messages, `"}`...)
	}
	return turns, nil
}

// openingMessages is a session's first prompt, without the closing bracket.
func openingMessages(agent int) []byte {
	m := append(make([]byte, 0, 64<<10), `[{"role":"system","content":"`...)
	m = appendNoise(m, rand.New(rand.NewPCG(1, 5)), agentCommon)
	m = append(m, `"},{"role":"user","content":"agent `...)
	m = strconv.AppendInt(m, int64(agent), 10)
	m = append(m, ": "...)
	m = appendNoise(m, rand.New(rand.NewPCG(uint64(agent), 6)), agentOpened)
	return append(m, `"}`...)
}

func appendNoise(b []byte, rnd *rand.Rand, n int) []byte {
	for range n / 8 {
		b = fmt.Appendf(b, "%07x ", rnd.Uint32()&0xfffffff)
	}
	return b
}

// turn makes one request and checks its answer.
func (c crowd) turn(ctx context.Context, to *target, messages, buf []byte) (turn, []byte, error) {
	body := make([]byte, 0, len(messages)+128)
	body = append(body, `{"model":"agents","stream":true,"stream_options":{"include_usage":true},"messages":`...)
	body = append(body, messages...)
	body = append(body, "]}"...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return turn{}, buf, err
	}
	req.Header.Set("Content-Type", "application/json")
	if to.key != "" {
		req.Header.Set("Authorization", "Bearer "+to.key)
	}
	began := time.Now()
	resp, err := c.client.http.Do(req)
	if err != nil {
		return turn{}, buf, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 2048))
		return turn{}, buf, fmt.Errorf("%s answered %d: %s", to.name, resp.StatusCode, text)
	}
	var t turn
	if ms, err := strconv.ParseInt(resp.Header.Get("X-Weir-Queue-Ms"), 10, 64); err == nil {
		t.queued = time.Duration(ms) * time.Millisecond
	}
	buf = buf[:0]
	marks := 0
	for {
		buf = slices.Grow(buf, 4<<10)
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 && marks < 4 && bytes.IndexByte(buf[len(buf)-n:], '@') >= 0 {
			marks = bytes.Count(buf, []byte("@"))
			switch {
			case marks >= 4:
				t.total = time.Since(began)
			case marks >= 2 && t.first == 0:
				t.first = time.Since(began)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return t, buf, fmt.Errorf("%s cut an answer: %w", to.name, err)
		}
	}
	return t, buf, t.read(buf)
}

// read checks an answer and takes the engine's times from it.
func (t *turn) read(answer []byte) error {
	if !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("data: [DONE]")) || !bytes.Contains(answer, []byte(`"usage":{"prompt_tokens"`)) {
		return fmt.Errorf("an answer without usage or end: %.300q", answer[max(len(answer)-300, 0):])
	}
	if n := bytes.Count(answer, []byte(`"delta":{"content":"`)); n != agentChunks {
		return fmt.Errorf("%d of %d pieces came", n, agentChunks)
	}
	parts := bytes.Split(answer, []byte("@"))
	if len(parts) != 5 {
		return fmt.Errorf("an answer names %d times", len(parts)/2)
	}
	begun, err := strconv.ParseInt(string(parts[1]), 10, 64)
	if err != nil {
		return err
	}
	engine, err := strconv.ParseInt(string(parts[3]), 10, 64)
	t.begun, t.engine = time.Duration(begun), time.Duration(engine)
	return err
}

// crowded is what a crowd's run came to.
type crowded struct {
	agents int
	turns  []turn
	prefix PrefixStats
	wall   time.Duration
	cpu    []time.Duration // of the target's parts
	parts  []proc.Part
	memory int64 // peak of the target's first part, in bytes
}

// agentsThrough runs a crowd through targets and counts what they used.
func (b *bench) agentsThrough(ctx context.Context, c crowd, t *target) (out crowded, err error) {
	out.agents = c.agents
	var before PrefixStats
	if before, err = b.prefixStats(ctx); err != nil {
		return out, err
	}
	var from []time.Duration
	if t != nil {
		out.parts = t.parts
		if from, err = proc.CPU(t.parts); err != nil {
			return out, err
		}
	}
	began := time.Now()
	if out.turns, err = c.run(ctx); err != nil {
		return out, err
	}
	out.wall = time.Since(began)
	if t != nil {
		to, err := proc.CPU(t.parts)
		if err != nil {
			return out, err
		}
		for i := range to {
			out.cpu = append(out.cpu, to[i]-from[i])
		}
		m, err := proc.MemoryOf(t.parts[0].PID)
		if err != nil {
			return out, err
		}
		out.memory = m.Peak
	}
	after, err := b.prefixStats(ctx)
	out.prefix = after.minus(before)
	return out, err
}

func (s PrefixStats) minus(o PrefixStats) PrefixStats {
	out := PrefixStats{
		Requests: s.Requests - o.Requests, Blocks: s.Blocks - o.Blocks, Hits: s.Hits - o.Hits,
		Attainable: s.Attainable - o.Attainable, Abandoned: s.Abandoned - o.Abandoned,
	}
	for i := range s.ByEngine {
		out.ByEngine = append(out.ByEngine, s.ByEngine[i]-o.ByEngine[i])
	}
	return out
}

func (b *bench) prefixStats(ctx context.Context) (s PrefixStats, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.mockAddr+"/_stats", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// busy is the part of the machine that the target's CPU time is.
func (c crowded) busy() float64 {
	var sum time.Duration
	for _, d := range c.cpu {
		sum += d
	}
	return sum.Seconds() / c.wall.Seconds() / float64(runtime.NumCPU())
}
