package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"weir/bench/proc"
	"weir/bench/section"
)

const (
	responsesPath = "/v1/responses"
	chainTurn     = 8000 // bytes that a turn's question has: about 2,000 tokens
	chainFresh    = 16   // turns beyond a chain's length, for a replica that loads each of them once
)

// chain is one that is stored: what Chat would be told, and its responses.
type chain struct {
	turns    int
	messages []string
	ids      []string
}

// chained is what a turn of a chain came to, each way.
type chained struct {
	turns      int
	chat, kept []round // of each round; kept: by a replica that remembers the chain
	loaded     round
	chatBytes  int
}

// runChains is the command's fourth life: a turn of a chain beside the Chat
// request that says the same.
func (o options) runChains(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	if err := runnable(o.weir); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		return err
	}
	b := &bench{progress: stderr, dir: dir, client: newClient()}
	defer func() { err = errors.Join(err, b.stop(context.WithoutCancel(ctx)), os.RemoveAll(dir)) }()
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	b.mockAddr = hostPort(port)
	if _, err := b.startSelf(ctx, "mock", b.mockAddr, []string{"GOMAXPROCS=1"}); err != nil {
		return err
	}
	if err := b.startOwnTenant(ctx, o.weir); err != nil {
		return err
	}
	if err := b.serve(ctx, b.installation, "another replica", nil); err != nil {
		return err
	}
	var all []chained
	for _, turns := range []int{1, 20, 200} {
		one, err := b.chained(ctx, o, turns)
		if err != nil {
			return fmt.Errorf("chain of %d: %w", turns, err)
		}
		all = append(all, one)
	}
	text := chainTable(all, "go run ./bench "+shown(args))
	if _, err := io.WriteString(stdout, text); err != nil || o.out == "" {
		return err
	}
	return section.Place(o.out, "Responses", "chains", text)
}

// chained measures a turn of a new chain.
func (b *bench) chained(ctx context.Context, o options, turns int) (out chained, err error) {
	b.say(fmt.Sprintf("a chain of %d turns", turns))
	near, far := b.targets[0], b.targets[1]
	c, err := b.client.chain(ctx, near, turns)
	if err != nil {
		return out, err
	}
	chat, kept := c.chat(), c.next(turns-1)
	out.turns, out.chatBytes = turns, len(chat.body)
	n := max(int(100*o.scale), 8)
	for i := range o.rounds {
		for k := range 2 { // another order in each round
			s, rounds := chat, &out.chat
			if (i+k)%2 == 1 {
				s, rounds = kept, &out.kept
			}
			r, err := b.measure(ctx, near, load{shape: s, callers: 1, n: n})
			if err != nil {
				return out, err
			}
			*rounds = append(*rounds, r)
		}
	}
	fresh := make([]shape, chainFresh)
	for i := range fresh {
		fresh[i] = c.next(turns + i)
	}
	out.loaded, err = b.once(ctx, far, fresh)
	return out, err
}

// chain has so many turns stored, and some more.
func (c *client) chain(ctx context.Context, t *target, turns int) (*chain, error) {
	out := &chain{turns: turns}
	question := strings.Repeat("the river follows the old mill and ", chainTurn/35+1)[:chainTurn]
	for range turns + chainFresh {
		body := `{"model":"` + burstModel + `","input":` + quoted(question)
		if n := len(out.ids); n > 0 {
			body += `,"previous_response_id":"` + out.ids[n-1] + `"`
		}
		answer, err := c.start(ctx, t, shape{body: []byte(body + "}"), path: responsesPath})
		if err != nil {
			return nil, err
		}
		raw, err := io.ReadAll(answer)
		_ = answer.Close()
		r := gjson.ParseBytes(raw)
		if err != nil || r.Get("status").Str != "completed" {
			return nil, fmt.Errorf("%s answered %.300s: %w", t.name, raw, err)
		}
		out.ids = append(out.ids, r.Get("id").Str)
		out.messages = append(out.messages,
			`{"role":"user","content":`+quoted(question)+`}`,
			`{"role":"assistant","content":`+quoted(r.Get("output.0.content.0.text").Str)+`}`)
	}
	return out, nil
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a text never fails
	return string(b)
}

const nextQuestion = "and then?"

// chat is the Chat request of the next turn.
func (c *chain) chat() shape {
	return shape{stream: true, body: []byte(`{"model":"` + burstModel + `","stream":true,"stream_options":{"include_usage":true},"messages":[` +
		strings.Join(c.messages[:2*c.turns], ",") + `,{"role":"user","content":"` + nextQuestion + `"}]}`)}
}

// next is the turn after one, counted from 0.
func (c *chain) next(turn int) shape {
	return shape{stream: true, path: responsesPath, body: []byte(`{"model":"` + burstModel + `","stream":true,"input":"` + nextQuestion +
		`","previous_response_id":"` + c.ids[turn] + `"}`)}
}

// once makes each request one time, one after the other.
func (b *bench) once(ctx context.Context, t *target, shapes []shape) (round, error) {
	before, err := proc.CPU(t.parts)
	if err != nil {
		return round{}, err
	}
	var took run
	var buf []byte
	begin := time.Now()
	for _, s := range shapes {
		var one sample
		if one, buf, err = b.client.exchange(ctx, t, s, time.Now(), buf); err != nil {
			return round{}, err
		}
		took.samples = append(took.samples, one)
	}
	took.wall = time.Since(begin)
	if err := pause(ctx, 60*time.Millisecond); err != nil { // as measure does
		return round{}, err
	}
	after, err := proc.CPU(t.parts)
	if err != nil {
		return round{}, err
	}
	return took.summary(t, len(shapes), before, after)
}

// checkResponse is check for a stream of a response's events.
func (t *target) checkResponse(answer []byte) error {
	switch {
	case !bytes.Contains(answer, fmt.Appendf(nil, `"output_tokens":%d`, outputTokens)):
		return fmt.Errorf("%s gave a response without usage: %.300s", t.name, answer)
	case !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("data: [DONE]")), !bytes.Contains(answer, []byte("event: response.completed\n")):
		return fmt.Errorf("%s ended a response otherwise: %.300q", t.name, answer[max(len(answer)-300, 0):])
	}
	if n := bytes.Count(answer, []byte(`"delta":" word`)); n != streamEvents {
		return fmt.Errorf("%s gave %d of %d deltas", t.name, n, streamEvents)
	}
	return nil
}

func chainTable(all []chained, command string) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured %s on %s with `%s`", time.Now().UTC().Format("2006-01-02"), section.Machine(), command)
	if load := section.LoadAverage(); load != "" {
		fmt.Fprintf(&w, "; the machine's load average was %s at the end", load)
	}
	w.WriteString(".\n\n")
	section.Head(&w, "turns", "way", "CPU", "of it Postgres", "first byte, p50", "p99", "whole, p50")
	for _, c := range all {
		chat := middle(c.chat)
		for i, r := range []round{chat, middle(c.kept), c.loaded} {
			name := []string{fmt.Sprintf("%d (%d KB)", c.turns, c.chatBytes>>10), "", ""}[i]
			way := []string{"Chat", "remembered", "loaded"}[i]
			section.Row(&w, name, way, added(r.allCPU(), chat.allCPU()), fmt.Sprintf("%.2f ms", millis(r.cpu[len(r.cpu)-1])),
				added(r.first[0], chat.first[0]), fmt.Sprintf("%.2f ms", millis(r.first[1])), added(r.total[0], chat.total[0]))
		}
	}
	return w.String()
}

// added is a time, and how much that is beyond another.
func added(d, base time.Duration) string {
	text := fmt.Sprintf("%.2f ms", millis(d))
	if d != base {
		text += fmt.Sprintf(" (%+.2f)", millis(d-base))
	}
	return text
}

// middle is the median of each of the rounds' figures.
func middle(rounds []round) round {
	of := func(value func(round) time.Duration) time.Duration {
		var all []time.Duration
		for _, r := range rounds {
			all = append(all, value(r))
		}
		return spreadOf(all).median
	}
	var out round
	for i := range rounds[0].cpu {
		out.cpu = append(out.cpu, of(func(r round) time.Duration { return r.cpu[i] }))
	}
	for i := range out.first {
		out.first[i] = of(func(r round) time.Duration { return r.first[i] })
		out.total[i] = of(func(r round) time.Duration { return r.total[i] })
	}
	return out
}
