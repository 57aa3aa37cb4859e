package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
)

var (
	// ErrShared is that a prompt of one salt came from the cache for another.
	ErrShared = errors.New("a prompt of one salt came from the cache for another: the engine ignores cache_salt")
	// ErrNoHit is that no prompt came from the cache, so that nothing was learnt.
	ErrNoHit = errors.New("a repeated prompt came not from the cache: the engine has none, or doesn't say so (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report)")
)

// How a probe is made. One prompt fills many cache blocks. A server may be
// several engines, each with its own cache: the same salt has to hit at one of
// a few attempts, another salt at none.
const (
	probeWords   = 60 // of 26 random characters
	probeRepeats = 4
	probeOthers  = 3
)

// Probe finds out whether a prefix cache keeps salts apart.
type Probe struct {
	// Cached sends a prompt and returns how many of its tokens came from the cache.
	Cached func(ctx context.Context, salt, prompt string) (int64, error)
	// Salt makes a salt of a tenant who doesn't exist.
	Salt func() string
	// Context is how many tokens the engine takes; 0: unknown.
	Context int
	// Older is a prompt that a former probe sent; by now it may have left the
	// fast cache, but must not come back from slower storage either. Empty: none.
	Older string
}

// Run makes the probe. It returns the prompt that it used; the error is
// ErrShared where salts share a cache, and any other where nothing was learnt.
func (p Probe) Run(ctx context.Context) (prompt string, err error) {
	if p.Older != "" {
		if err := p.expectMiss(ctx, p.Older); err != nil {
			return "", err
		}
	}
	prompt = probePrompt(p.Context)
	if err := p.expectHit(ctx, p.Salt(), prompt); err != nil {
		return prompt, err
	}
	for range probeOthers {
		if err := p.expectMiss(ctx, prompt); err != nil {
			return prompt, err
		}
	}
	return prompt, nil
}

// probePrompt is one that nobody has sent before.
func probePrompt(context int) string {
	words := probeWords
	if most := context / 40; most > 0 {
		words = min(words, most)
	}
	var b strings.Builder
	for range words {
		b.WriteString(strings.ToLower(rand.Text()) + " ")
	}
	return b.String()
}

// expectHit repeats the prompt until it comes from the cache. The template
// alone may hit at the first time.
func (p Probe) expectHit(ctx context.Context, salt, prompt string) error {
	for n := range probeRepeats {
		cached, err := p.Cached(ctx, salt, prompt)
		if err != nil {
			return err
		}
		if n > 0 && cached > 0 {
			return nil
		}
	}
	return ErrNoHit
}

func (p Probe) expectMiss(ctx context.Context, prompt string) error {
	cached, err := p.Cached(ctx, p.Salt(), prompt)
	if err == nil && cached > 0 {
		err = ErrShared
	}
	return err
}
