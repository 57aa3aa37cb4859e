package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// The flood on a real clock: one simulated engine that behaves like vLLM, as a
// process of its own, behind a whole gateway.
const (
	floodPlaces = 64                    // requests at once at the engine
	floodStep   = 40 * time.Millisecond // between two tokens
	floodAlone  = 15 * time.Second      // the top band alone
	floodLasts  = 10 * time.Second      // five times the capacity comes for so long
	floodSettle = 3 * time.Second       // before anything counts
)

// floodPool is an engine that two bands share, and the requests of both.
type floodPool struct {
	engine, model string
	places        int     // that the gateway fills
	ceiling       float64 // part of them that the low band may fill
	prompt        int     // words
	answer        int     // tokens, in the mean; each has from half of it to half more
	even          bool    // all answers have as many
}

// simulated leaves a fifteenth of the engine to the top band.
func simulated() floodPool {
	return floodPool{engine: "vllm", model: "sim", places: floodPlaces, ceiling: .93, prompt: 20, answer: 32, even: true}
}

func (p floodPool) catalogue(url string) string {
	return fmt.Sprintf(`apiVersion: weir/v1
bands:
  - {name: top, priority: 10}
  - {name: standard, priority: 0}
plans:
  top: {bands: {default: top}, weight: 1, fairness: tenant, limits: {concurrency: 100000}, key_limits: {concurrency: 100000}}
  low: {bands: {default: standard}, weight: 1, fairness: tenant, limits: {concurrency: 100000}, key_limits: {concurrency: 100000}}
pools:
  - name: engine
    scheduler:
%s    endpoints: [{id: engine, url: "%s", engine: %s}]
models:
  - {name: %[4]s, operations: [chat], context_length: 8192, routes: [{pool: engine}]}
prices:
  - {model: %[4]s, input: "0.10", cached_input: "0.02", output: "0.40"}
`, indented(p.document()), url, p.engine, p.model)
}

// document is how the pool is scheduled.
func (p floodPool) document() string {
	return fmt.Sprintf(`apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
  - {type: concurrency-detector, parameters: {maxConcurrency: %d}}
  - {type: priority-holdback-policy, parameters: {minCeiling: %g}}
  - {type: round-robin-fairness-policy}
  - {type: queue-scorer}
  - {type: max-score-picker}
schedulingProfiles:
  - name: default
    plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]
flowControl:
  defaultRequestTTL: 10m
  saturationDetector: {pluginRef: concurrency-detector}
  usageLimitPolicyPluginRef: priority-holdback-policy
  priorityBands:
    - {priority: 10, fairnessPolicyRef: round-robin-fairness-policy}
    - {priority: 0, fairnessPolicyRef: round-robin-fairness-policy, weirMaxFlowRequests: 5000}
`, p.places, p.ceiling)
}

func indented(document string) string {
	var w strings.Builder
	for line := range strings.Lines(document) {
		w.WriteString("      " + line)
	}
	return w.String()
}

// paced is how one stream came.
type paced struct {
	due, ended time.Time
	first      time.Duration   // from due
	gaps       []time.Duration // between two tokens
}

// floodedRun is what the top band felt.
type floodedRun struct {
	capacity          float64 // requests a second
	alone, loud       []paced
	offered, finished int
	took              time.Duration // until the low band had finished
	busy              float64       // part of the low band's and the top's places that were taken
}

// floodOnce is one request of a real stream.
func (c *client) floodOnce(ctx context.Context, t *target, p floodPool, due time.Time, n uint64) (paced, error) {
	out := paced{due: due}
	rnd := rand.New(rand.NewPCG(n, 7))
	prompt, tokens := words(rnd, p.prompt), p.answer
	if !p.even {
		tokens = tokens/2 + rnd.IntN(tokens+1) // else answers end in waves
	}
	body := fmt.Sprintf(`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"%s"}]}`, p.model, tokens, prompt)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+t.key)
	resp, err := c.http.Do(req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 2048))
		return out, fmt.Errorf("%s answered %d: %s", t.name, resp.StatusCode, text)
	}
	var last time.Time
	buf, answer := make([]byte, 16<<10), []byte(nil)
	for {
		k, err := resp.Body.Read(buf)
		now := time.Now()
		for range bytes.Count(buf[:k], []byte(`"delta":{"content":"`)) {
			if last.IsZero() {
				out.first = now.Sub(due)
			} else {
				out.gaps = append(out.gaps, now.Sub(last))
			}
			last = now
		}
		answer = append(answer, buf[:k]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return out, err
		}
	}
	if !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("data: [DONE]")) || last.IsZero() {
		return out, fmt.Errorf("a stream without content or end: %.300q", answer)
	}
	out.ended = time.Now()
	return out, nil
}

// words is a prompt of words that are a token each for most models.
func words(rnd *rand.Rand, n int) string {
	some := strings.Fields("river water stone gate bridge flood summer winter light house road field garden letter window mountain")
	out := make([]string, n)
	for i := range out {
		out[i] = some[rnd.IntN(len(some))]
	}
	return strings.Join(out, " ")
}

// offer sends requests at random times at a mean rate until the time is over,
// and returns when all have ended: with how they came and how many were sent.
func (c *client) offer(ctx context.Context, t *target, p floodPool, perSecond float64, lasts time.Duration, seed uint64) ([]paced, int, error) {
	rnd := rand.New(rand.NewPCG(seed, 8))
	var mu sync.Mutex
	var all []paced
	g, ctx := errgroup.WithContext(ctx)
	n, began := 0, time.Now()
	for due := began; ; n++ {
		due = due.Add(time.Duration(rnd.ExpFloat64() / perSecond * float64(time.Second)))
		if due.Sub(began) > lasts {
			break
		}
		if err := pause(ctx, time.Until(due)); err != nil {
			break
		}
		at, number := due, seed<<20+uint64(n)
		g.Go(func() error {
			one, err := c.floodOnce(ctx, t, p, at, number)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				all = append(all, one)
			}
			return err
		})
	}
	err := g.Wait()
	return all, n, err
}

// settled are those that came once their phase had settled, and before it was
// over.
func settled(all []paced, began time.Time, settle, lasts time.Duration) []paced {
	return slices.DeleteFunc(all, func(p paced) bool {
		at := p.due.Sub(began)
		return at < settle || at > lasts
	})
}

// flood measures the top band alone and then with the low one below it, whose
// requests all wait or run while the top one's come.
func (b *bench) flood(ctx context.Context, top, low *target, engine string) (out floodedRun, err error) {
	pool := simulated()
	answer := time.Duration(pool.answer)*floodStep + 50*time.Millisecond
	out.capacity = floodPlaces / answer.Seconds()
	began := time.Now()
	if out.alone, _, err = b.client.offer(ctx, top, pool, .3*out.capacity, floodAlone+floodSettle, 21); err != nil {
		return out, err
	}
	out.alone = settled(out.alone, began, floodSettle, floodAlone+floodSettle)
	g, gctx := errgroup.WithContext(ctx)
	began = time.Now()
	g.Go(func() error {
		done, offered, err := b.client.offer(gctx, low, pool, 5*out.capacity, floodLasts, 22)
		out.finished, out.offered, out.took = len(done), offered, time.Since(began)
		return err
	})
	g.Go(func() (err error) {
		within, done := context.WithCancel(gctx)
		defer done()
		busy := make(chan float64, 1)
		go func() { busy <- running(within, engine) }()
		out.loud, _, err = b.client.offer(gctx, top, pool, .3*out.capacity, 5*floodLasts, 23)
		out.loud = settled(out.loud, began, floodSettle, 5*floodLasts)
		done()
		out.busy = <-busy / floodPlaces
		return err
	})
	return out, g.Wait()
}

// running is the mean of what runs at the engine by its own word, until ctx
// ends, once the flood has settled.
func running(ctx context.Context, engine string) float64 {
	if pause(ctx, floodSettle) != nil {
		return 0
	}
	sum, n := 0.0, 0
	for pause(ctx, 200*time.Millisecond) == nil {
		if v, err := gauge(ctx, engine+"/metrics", "vllm:num_requests_running"); err == nil {
			sum, n = sum+v, n+1
		}
	}
	return sum / float64(max(n, 1))
}

// gauge reads the first sample of a metric.
func gauge(ctx context.Context, url, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, name+"{") {
			return strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		}
	}
	return 0, fmt.Errorf("no %s at %s", name, url)
}

func tails(all []paced) (first, gap time.Duration) {
	var firsts, gaps []time.Duration
	for _, p := range all {
		firsts = append(firsts, p.first)
		gaps = append(gaps, p.gaps...)
	}
	return tail95(firsts), tail95(gaps)
}

func tail95(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)*95/100]
}
