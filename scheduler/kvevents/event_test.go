package kvevents_test

import (
	"testing"

	"weir/scheduler"
	"weir/scheduler/kvevents"
)

func TestBothEncodingsAndAllFieldsAreRead(t *testing.T) {
	t.Parallel()
	tokens := make([]int, 32)
	hash := []byte("a hash of thirty-two bytes, or so")
	for _, c := range []struct {
		name   string
		event  any
		blocks int
	}{
		{"array", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, nil, "GPU", nil, nil, nil}, 2},
		{"array of an older engine", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, nil}, 2},
		{"array of a newer engine", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, nil, "GPU", nil, nil, 0, "full", nil, "more"}, 2},
		{"map", map[string]any{
			"type": "BlockStored", "block_hashes": []any{hash, 2}, "parent_block_hash": nil, "token_ids": tokens, "block_size": 16,
			"medium": nil, "what_comes_next": map[string]any{"a": []int{1}},
		}, 2},
		{"extra keys of each block", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, nil, "GPU", nil, []any{[]any{"salt", []any{"image", 4}}, nil}}, 2},
		{"extra keys of another number of blocks", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, nil, "GPU", nil, []any{nil}}, 0},
		{"tokens of another number of blocks", []any{"BlockStored", []any{1, 2}, nil, tokens[:20], 16, nil}, 0},
		{"blocks of an adapter", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, 7, "GPU", "adapter"}, 0},
		{"another group of layers", []any{"BlockStored", []any{1, 2}, nil, tokens, 16, nil, "GPU", nil, nil, 1}, 0},
		{"a block whose beginning is not known", []any{"BlockStored", []any{2}, hash, tokens[:16], 16, nil}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			r := follow(t, kvevents.Source{Events: to(s.l)})
			s.connected()
			s.publish(0, pack(t, []any{1.5, []any{c.event}, nil}))
			r.expects(scheduler.Trusted, c.blocks)
		})
	}
}

func TestABlockIsInTheTiersThatItsEventsName(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	r := follow(t, kvevents.Source{Events: to(s.l)})
	s.connected()
	events := func(all ...any) []byte { return pack(t, map[string]any{"ts": 1.5, "events": all}) }
	s.publish(0, batch(t, 0, 3))
	s.publish(1, events(
		[]any{"BlockStored", []any{1000, 1001, 1002}, nil, []any{}, 16, nil, "CPU"}, // copied, told without tokens
		map[string]any{"type": "BlockStored", "block_hashes": []any{1000}, "token_ids": []any{}, "block_size": 16, "medium": "DISK"},
		[]any{"BlockRemoved", []any{1002, 1001}, "GPU"},
	))
	r.expects(scheduler.Trusted, 1)
	if c := r.State().Endpoints[0].Cache; c.Host != 3 || c.Storage != 1 {
		t.Errorf("in the tiers: %+v, want 1, 3 and 1", c)
	}
	if got := r.cached(3); got < 40 || got >= 48 {
		t.Errorf("%d tokens' worth is expected of 16 in memory and 32 at the host", got)
	}
	s.publish(2, events([]any{"BlockRemoved", []any{1002}, "CPU"}))
	s.publish(3, events([]any{"BlockRemoved", []any{1000, 1001}, "CPU"}, []any{"BlockRemoved", []any{1000}, "GPU"}))
	r.expects(scheduler.Trusted, 0)
	if got := r.cached(3); got < 1 || got >= 16 {
		t.Errorf("%d tokens' worth is expected of 16 in storage", got)
	}
}

func TestCopiesOfABlockAreCounted(t *testing.T) {
	t.Parallel()
	gone := func(more ...any) []any { return append([]any{"BlockRemoved", []any{1000, 1001}, "GPU"}, more...) }
	for _, c := range []struct {
		name  string
		event []any
		left  int
	}{
		{"by what came and went", gone(), 2},
		{"by what the engine says is left", gone(nil, []any{0, 1}), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			r := follow(t, kvevents.Source{Events: to(s.l)})
			s.connected()
			s.publish(0, batch(t, 0, 2))
			s.publish(1, batch(t, 0, 2)) // two requests that came at once
			s.publish(2, pack(t, []any{1, []any{c.event, []any{"BlockStored", []any{7}, nil, prompt(2)[16:], 16, nil}}}))
			left := c.left + 1
			if c.left == 1 {
				left = 1 // the second follows the first
			}
			r.expects(scheduler.Trusted, left)
		})
	}
}

func TestASaltIsPartOfTheName(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	r := follow(t, kvevents.Source{Events: to(s.l)})
	s.connected()
	s.publish(0, pack(t, []any{1, []any{
		[]any{"BlockStored", []any{1, 2}, nil, prompt(2), 16, nil, "GPU", nil, []any{[]any{"mine"}, nil}},
	}}))
	r.expects(scheduler.Trusted, 2)
	for salt, want := range map[string]int{"mine": 32, "yours": 0, "": 0} {
		l, err := r.Schedule(t.Context(), scheduler.Request{ID: "of " + salt, Model: "m", CacheSalt: salt, Tokens: scheduler.PreciseCache{}.Chain(append(prompt(2), 9), salt)})
		if err != nil {
			t.Fatal(err)
		}
		l.End(scheduler.Outcome{Result: scheduler.Abandoned})
		if d, _ := r.Decision("of " + salt); d.CachedTokens != want {
			t.Errorf("salt %q: %d tokens are expected, want %d", salt, d.CachedTokens, want)
		}
	}
}
