package tenants

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"
)

func TestCache(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	of := func(secret string) digest { return sha256.Sum256([]byte(secret)) }
	fetch := func(c *cache, id KeyID) *entry {
		return &entry{
			found:  &found{principal: &Principal{Key: id, Tenant: "ten_a", Plan: &Plan{Name: "gold"}}},
			loaded: start, freshUntil: start.Add(5 * time.Second), epoch: c.begin(),
		}
	}

	t.Run("an answer is believed until its time and kept after it", func(t *testing.T) {
		t.Parallel()
		c := newCache(10)
		e := fetch(c, "key_1")
		if !c.put(of("1"), e) {
			t.Fatal("put refused")
		}
		if got, fresh := c.get(of("1"), e.freshUntil.Add(-1)); got != e || !fresh {
			t.Errorf("get = %v, %v before its time ends", got, fresh)
		}
		if got, fresh := c.get(of("1"), e.freshUntil); got != e || fresh {
			t.Errorf("get = %v, %v when its time ends", got, fresh)
		}
		if got, fresh := c.get(of("2"), start); got != nil || fresh {
			t.Errorf("get of another secret = %v, %v", got, fresh)
		}
	})

	changes := []struct {
		name string
		make func(*cache)
	}{
		{"its key", func(c *cache) { c.dropKey("key_1") }},
		{"a key that is not there yet", func(c *cache) { c.dropKey("key_2") }},
		{"its tenant", func(c *cache) { c.dropIf(func(p *Principal) bool { return p.Tenant == "ten_a" }) }},
		{"everything", (*cache).distrustAll},
	}
	for _, change := range changes {
		t.Run("an answer is not let in after a change of "+change.name+" while it was fetched", func(t *testing.T) {
			t.Parallel()
			c := newCache(10)
			e := fetch(c, "key_1")
			change.make(c)
			if c.put(of("1"), e) {
				t.Fatal("put accepted it")
			}
			if got, fresh := c.get(of("1"), start); got != nil || fresh {
				t.Errorf("get = %v, %v", got, fresh)
			}
			if !c.put(of("1"), fetch(c, "key_1")) {
				t.Error("the next answer is refused too")
			}
		})
	}

	t.Run("a change drops what it names and nothing else", func(t *testing.T) {
		t.Parallel()
		c := newCache(10)
		e1, e2 := fetch(c, "key_1"), fetch(c, "key_2")
		c.put(of("1"), e1)
		c.put(of("2"), e2)
		c.dropKey("key_1")
		if got, _ := c.get(of("1"), start); got != nil || c.holds(e1.found.principal) {
			t.Error("the named key is still there")
		}
		if got, fresh := c.get(of("2"), start); got != e2 || !fresh || !c.holds(e2.found.principal) {
			t.Error("the other key is gone")
		}
		c.dropIf(func(p *Principal) bool { return p.Plan.Name == "gold" })
		if got, _ := c.get(of("2"), start); got != nil {
			t.Error("the plan's key is still there")
		}
	})

	t.Run("distrust keeps entries but believes only newer ones", func(t *testing.T) {
		t.Parallel()
		c := newCache(10)
		c.put(of("1"), fetch(c, "key_1"))
		c.distrustAll()
		if got, fresh := c.get(of("1"), start); got == nil || fresh {
			t.Errorf("get = %v, %v; want the entry, not fresh", got, fresh)
		}
		c.put(of("1"), fetch(c, "key_1"))
		if _, fresh := c.get(of("1"), start); !fresh {
			t.Error("an entry that was fetched again is not believed")
		}
	})

	t.Run("it never holds more than its size and lets the oldest go", func(t *testing.T) {
		t.Parallel()
		c := newCache(8)
		for i := range 100 {
			e := fetch(c, KeyID(fmt.Sprintf("key_%d", i)))
			e.loaded = start.Add(time.Duration(i) * time.Second)
			c.put(of(fmt.Sprint(i)), e)
		}
		if len(c.known) != 8 || len(c.byKey) != 8 {
			t.Fatalf("%d entries and %d keys, want 8", len(c.known), len(c.byKey))
		}
		for i := 92; i < 100; i++ {
			if e, _ := c.get(of(fmt.Sprint(i)), start); e == nil {
				t.Errorf("entry %d is gone", i)
			}
		}
	})

	t.Run("unknown secrets are bounded and push out no key", func(t *testing.T) {
		t.Parallel()
		c := newCache(8)
		for i := range 8 {
			c.put(of(fmt.Sprint(i)), fetch(c, KeyID(fmt.Sprintf("key_%d", i))))
		}
		for i := range 1000 {
			c.putUnknown(of(fmt.Sprintf("noise %d", i)), start.Add(time.Second))
		}
		if len(c.known) != 8 || len(c.unknown) > 2 {
			t.Errorf("%d keys, want 8; %d unknown, want at most 2", len(c.known), len(c.unknown))
		}
		if e, fresh := c.get(of("noise 999"), start); e != nil || !fresh {
			t.Errorf("the last unknown secret = %v, %v", e, fresh)
		}
		if _, fresh := c.get(of("noise 999"), start.Add(time.Second)); fresh {
			t.Error("an unknown secret is believed for too long")
		}
	})

	t.Run("a key that is gone is forgotten when its secret turns out unknown", func(t *testing.T) {
		t.Parallel()
		c := newCache(8)
		e := fetch(c, "key_1")
		c.put(of("1"), e)
		c.putUnknown(of("1"), start.Add(time.Second))
		if got, fresh := c.get(of("1"), start); got != nil || !fresh || c.holds(e.found.principal) {
			t.Errorf("get = %v, %v", got, fresh)
		}
	})
}
