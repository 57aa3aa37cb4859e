package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
)

const cachedPath = "usage.prompt_tokens_details.cached_tokens"

// cached sends one prompt and returns how much of it came from the cache.
func (s *server) cached(ctx context.Context, salt, prompt string) (int64, error) {
	a, err := s.ask(ctx, chatPath, s.chat(prompt, 1, fields{"cache_salt": salt}))
	switch {
	case err != nil:
		return 0, err
	case !a.ok():
		return 0, errors.New(a.says())
	}
	return a.get(cachedPath).Int(), nil
}

func newSalt() string { return strings.ToLower(rand.Text() + rand.Text()) }

func (s *server) probe() Probe { return Probe{Cached: s.cached, Salt: newSalt, Context: s.context} }

// checkSalt repeats a prompt with its own salt and with others.
func (s *server) checkSalt(ctx context.Context) []Check {
	hits := Check{Name: CachedTokens, Status: Pass, Found: "a repeated prompt is told as cached"}
	apart := Check{Name: SaltIsolation, Status: Pass, Found: "the same salt hits, another doesn't"}
	_, err := s.probe().Run(ctx)
	switch {
	case err == nil:
	case errors.Is(err, ErrShared):
		apart.Status, apart.Found = Fail, err.Error()
		apart.Todo = "give its pool to one tenant (isolation: single-tenant), or switch its prefix cache off"
		if s.engine == llamaCPP {
			apart.Status = Unsupported // it has never had salts
		}
	case errors.Is(err, ErrNoHit):
		hits.Status, hits.Found = Fail, err.Error()
		hits.Todo = "switch that on: cached tokens are billed as uncached until then"
		apart.Status, apart.Found = Unknown, "no prompt came from the cache"
	default:
		hits.Status, hits.Found = Unknown, err.Error()
		apart.Status, apart.Found = Unknown, err.Error()
	}
	return []Check{hits, apart}
}

// checkStorage pushes a prompt out of the fast cache and asks for it again. One
// that comes back for its own salt came from slower storage, or was not pushed
// out; either way it must not come for another.
func (s *server) checkStorage(ctx context.Context) Check {
	load, err := s.load(ctx)
	size := load.Blocks * load.BlockSize
	switch {
	case s.cfg.Storage == 0:
		return Check{StorageIsolation, Unknown, "not tried", "--storage N sends prompts of N tokens, to push one out of the fast cache"}
	case err != nil || size == 0:
		return Check{StorageIsolation, Unknown, "it doesn't tell how large its cache is", "see the check of its metrics"}
	case s.cfg.Storage < size:
		return Check{StorageIsolation, Unknown, fmt.Sprintf("its cache holds %d tokens, and only %d may be sent", size, s.cfg.Storage), fmt.Sprintf("--storage %d", size+size/8)}
	}
	salt, p := newSalt(), s.probe()
	prompt := probePrompt(s.context)
	if err := p.expectHit(ctx, salt, prompt); err != nil {
		return Check{Name: StorageIsolation, Status: Unknown, Found: err.Error()}
	}
	if err := s.flood(ctx, size+size/8); err != nil {
		return Check{Name: StorageIsolation, Status: Unknown, Found: err.Error()}
	}
	if err := p.expectMiss(ctx, prompt); err != nil {
		if !errors.Is(err, ErrShared) {
			return Check{Name: StorageIsolation, Status: Unknown, Found: err.Error()}
		}
		return Check{StorageIsolation, Fail, "a prompt came back from slower storage for another salt", "give its pool to one tenant (isolation: single-tenant), or switch that storage off"}
	}
	back, err := s.cached(ctx, salt, prompt)
	switch {
	case err != nil:
		return Check{Name: StorageIsolation, Status: Unknown, Found: err.Error()}
	case back == 0:
		return Check{Name: StorageIsolation, Status: Unsupported, Found: "what leaves the fast cache doesn't come back: there is no slower storage, or it forgot as well"}
	}
	return Check{Name: StorageIsolation, Status: Pass, Found: "what comes back from slower storage comes for its own salt alone"}
}

// flood fills the cache with so many tokens of other prompts.
func (s *server) flood(ctx context.Context, tokens int) error {
	for sent := 0; sent < tokens; {
		a, err := s.ask(ctx, chatPath, s.chat(probePrompt(s.context), 1, fields{"cache_salt": newSalt()}))
		switch {
		case err != nil:
			return err
		case !a.ok():
			return errors.New(a.says())
		}
		n := int(a.get("usage.prompt_tokens").Int())
		if n == 0 {
			return errors.New("an answer without usage.prompt_tokens")
		}
		sent += n
	}
	return nil
}
