package scheduler

import (
	"bytes"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func chainOf(t *testing.T, p PrefixCache, blockTokens int, r Request) *chain {
	t.Helper()
	return newHasher(p.withDefaults(), blockTokens, &sync.Pool{}).chain(&r)
}

func TestChainsAgreeAsFarAsPromptsDo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "prompt")
		other := slices.Clone(text)
		differ := len(text)
		if len(text) > 0 && rapid.Bool().Draw(t, "differs") {
			differ = rapid.IntRange(0, len(text)-1).Draw(t, "at")
			other[differ]++
		}
		const block = 8
		h := newHasher(PrefixCache{BytesPerToken: 1, MaxTokens: 1 << 20}, block, &sync.Pool{})
		one := h.chain(&Request{Prompt: cut(t, text)})
		two := h.chain(&Request{Prompt: cut(t, other)})
		if len(text) == 0 {
			return
		}
		if want := len(text) / block; len(one.hashes) != want || len(two.hashes) != want || one.bytes != len(text) {
			t.Fatalf("%d and %d blocks of %d bytes, want %d of %d", len(one.hashes), len(two.hashes), one.bytes, want, len(text))
		}
		for i := range one.hashes {
			if equal := one.hashes[i] == two.hashes[i]; equal != (differ >= (i+1)*block) {
				t.Fatalf("prompts that differ at %d: block %d equal is %v", differ, i, equal)
			}
		}
	})
}

// cut parts a prompt at random places, empty parts included.
func cut(t *rapid.T, text []byte) (segments [][]byte) {
	for len(text) > 0 {
		n := rapid.IntRange(0, len(text)).Draw(t, "cut")
		segments = append(segments, text[:n])
		if text = text[n:]; n == 0 && rapid.Bool().Draw(t, "rest") {
			segments = append(segments, text)
			break
		}
	}
	return segments
}

func TestChainsOfOthersHaveNothingInCommon(t *testing.T) {
	t.Parallel()
	prompt := [][]byte{bytes.Repeat([]byte("the same for all "), 100)}
	requests := map[string]Request{
		"a":               {Prompt: prompt, Model: "m", CacheSalt: "tenant a"},
		"b":               {Prompt: prompt, Model: "m", CacheSalt: "tenant b"},
		"no salt":         {Prompt: prompt, Model: "m"},
		"another model":   {Prompt: prompt, Model: "n", CacheSalt: "tenant a"},
		"salt and model":  {Prompt: prompt, Model: "mtenant a"},
		"salt for model":  {Prompt: prompt, CacheSalt: "m"},
		"model parts off": {Prompt: prompt, Model: "mt", CacheSalt: "enant a"},
	}
	seen := map[uint64]string{}
	for name, r := range requests {
		for _, hash := range chainOf(t, PrefixCache{}, 64, r).hashes {
			if who := seen[hash]; who != "" {
				t.Errorf("%q shares a block with %q", name, who)
			}
			seen[hash] = name
		}
	}
}

func TestChainIsBounded(t *testing.T) {
	t.Parallel()
	r := Request{Prompt: [][]byte{make([]byte, 10_000)}}
	if got := len(chainOf(t, PrefixCache{MaxTokens: 640}, 64, r).hashes); got != 10 {
		t.Errorf("%d blocks of 64 tokens, want the 10 that are matched at most", got)
	}
	if c := chainOf(t, PrefixCache{Disabled: true}, 64, r); c != nil {
		t.Errorf("%+v where prefixes are of no interest", c)
	}
}
