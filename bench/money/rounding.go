package main

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"

	"weir/bench/section"
	"weir/billing"
)

const smallRequests = 1_000_000

// rounding adds up a million small requests, and what they would have cost
// without any rounding.
func rounding(_ context.Context, h *house) (string, error) {
	h.say("rounding a million requests")
	price := billing.Price{
		Model: "m", Tiers: billing.DefaultTiers(),
		Input: 37_500, CachedInput: 9_375, Output: 150_123, Reasoning: 150_123,
	}
	random := rand.New(rand.NewPCG(1, 2))
	var sum int64
	exact, each := new(big.Int), new(big.Int) // pico-USD; and with each request rounded as the promise says
	cents := 0
	for range smallRequests {
		u := billing.Usage{InputUncached: random.Int64N(400), InputCached: random.Int64N(400), Output: random.Int64N(100)}
		cost, err := price.Cost(u, "")
		if err != nil {
			return "", err
		}
		sum += cost.Nano
		pico := u.InputUncached*price.Input + u.InputCached*price.CachedInput + u.Output*price.Output
		exact.Add(exact, big.NewInt(pico))
		each.Add(each, big.NewInt((pico+500)/1000))
		cents += int((pico + 5_000_000_000) / 10_000_000_000)
	}
	off := new(big.Float).Quo(new(big.Float).SetInt(new(big.Int).Sub(new(big.Int).Mul(big.NewInt(sum), big.NewInt(1000)), exact)), new(big.Float).SetInt(exact))
	share, _ := off.Float64()
	var out strings.Builder
	fmt.Fprintf(&out, "### Rounding\n\n%d requests of at most 900 tokens.\n\n", smallRequests)
	section.Head(&out, "what", "nano-USD")
	section.Row(&out, "the sum of their costs", fmt.Sprint(sum))
	section.Row(&out, "the same in exact arithmetic, each rounded once", each.String())
	section.Row(&out, "difference", new(big.Int).Sub(big.NewInt(sum), each).String())
	section.Row(&out, "that against no rounding at all", fmt.Sprintf("%.1e of it", share))
	section.Row(&out, "had each been rounded to cents", fmt.Sprint(int64(cents)*10_000_000))
	return out.String(), nil
}
