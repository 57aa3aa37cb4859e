package scheduler

import (
	"fmt"
	"testing"
	"time"
)

func TestSessionsAreForgottenWhenIdle(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	b := bindings{ttl: SessionAffinity{}.ttl(), most: 10}
	p, r := &endpoint{}, &Request{Session: "s"}
	b.bind(r, p, 0, start)
	if x := b.find(r, start.Add(300*time.Second)); x == nil || x.endpoint != p {
		t.Error("a session is forgotten within its 300 s")
	}
	if x := b.find(r, start.Add(301*time.Second)); x != nil {
		t.Error("a session is remembered for longer than its 300 s")
	}
	if x := b.find(&Request{Affinity: "s"}, start); x != nil {
		t.Error("a hint is taken for a session of that name")
	}
	if x := b.find(&Request{}, start); x != nil {
		t.Error("requests of no session have one together")
	}
	b.bind(&Request{Session: "other"}, p, 0, start.Add(time.Hour))
	if len(b.byKey) != 1 || b.oldest != b.newest {
		t.Errorf("%d sessions remembered, want the one that is not idle", len(b.byKey))
	}
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 100
	b := bindings{ttl: time.Hour, most: most}
	now := time.Unix(1_000_000, 0)
	name := func(i int) *Request { return &Request{Session: fmt.Sprint(i)} }
	for i := range most + 10 {
		b.bind(name(i), &endpoint{}, 0, now)
		b.bind(name(0), &endpoint{}, 0, now) // is in use
	}
	if len(b.byKey) != most {
		t.Errorf("%d sessions remembered, want %d", len(b.byKey), most)
	}
	if b.find(name(0), now) == nil || b.find(name(1), now) != nil || b.find(name(most+9), now) == nil {
		t.Error("not the longest unused were forgotten")
	}
}
