package main

import (
	"strconv"
	"time"

	"weir/scheduler"
)

// mixedPool is engines of two kinds on two kinds of accelerator, each with the
// places that it can use.
func mixedPool() []server {
	var out []server
	add := func(n int, engine, accelerator string, slots int, m model) {
		for range n {
			out = append(out, server{m, scheduler.Endpoint{
				ID: engine + "-" + accelerator + "-" + strconv.Itoa(len(out)), MaxConcurrency: slots, Speed: m.prefill,
				Labels: map[string]string{"llm-d.ai/engine-type": engine, "accelerator": accelerator},
			}})
		}
	}
	gpu := standard(4000)
	other := gpu
	other.prefill, other.step = 14_000, 9*time.Millisecond
	tpu := standard(8000)
	tpu.prefill, tpu.step, tpu.perSeq = 32_000, 6*time.Millisecond, 30*time.Microsecond
	add(3, "vllm", "gpu", 48, gpu)
	add(3, "sglang", "gpu", 48, other)
	add(2, "vllm", "tpu", 96, tpu)
	return out
}

// burst is a thousand agents that begin within ten seconds, beside people who
// chat, twenty requests a second.
func burst() workload {
	a := &agents{
		n: 1000, begin: 10 * time.Second, cease: 3 * time.Minute, turns: 12, common: 4096, opened: 10_000,
		grows: 1000, answer: 150, tool: 3 * time.Second, class: "agent", band: 0, seed: 11,
	}
	chat := stream{class: "chat", tenant: "chat", band: 10, weight: 1, rate: 20, to: a.cease, input: 600, output: 200, common: 1024, seed: 12}
	return mix{a, chat}
}

// bursting runs it under a policy.
func bursting(b bubbles, p policy) (result, error) {
	return setup{workload: burst(), engines: mixedPool(), policy: p}.run(b)
}

// oursForBursts is Weir for that pool: agents may wait for ten minutes.
func oursForBursts() policy {
	return embedded("ours", scheduler.Config{
		Bands: []scheduler.BandConfig{{Priority: 10}, {Priority: 0, TTL: 10 * time.Minute}},
	}, 0)
}
