package billing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// pace is what a chunk is sized for: draws that come faster double it.
	pace = time.Second
	// scarceFor is how long a tenant's money counts as scarce after a refusal or
	// a recall.
	scarceFor       = 5 * time.Second
	shortestRefusal = 250 * time.Millisecond
	longestRefusal  = 2 * time.Second
	// uncappedFor is how long a node without a wallet is believed to have none,
	// where its caller asked for one.
	uncappedFor = time.Second
	// awayFor is how long Postgres isn't asked after it didn't answer.
	awayFor = 500 * time.Millisecond
)

// patience is how long a hold waits, in all, for what other processes return.
// They hear of a recall within a few milliseconds.
func patience() [3]time.Duration {
	return [...]time.Duration{15 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond}
}

// claim is a hold on its way: what it has of each pot so far. Nobody else can
// take that, so that a draw of the rest completes it.
type claim struct {
	hold  *Hold
	nano  int64
	got   [MaxNodes]int64
	lacks [MaxNodes]int64 // more than the rest where the pot's holds lost their chunk
}

// begin takes what is free, and returns the nodes that lack something and the
// most that one of them lacks.
func (c *claim) begin(now time.Time) (short []string, most int64) {
	c.hold.account.mu.Lock()
	defer c.hold.account.mu.Unlock()
	for i, p := range c.hold.pots[:c.hold.n] {
		c.lacks[i] = p.short(c.nano, now)
		free := p.free(now)
		c.got[i] = max(0, min(free, c.nano))
		p.hold(c.got[i], free)
		if c.lacks[i] > 0 {
			short, most = append(short, p.node), max(most, c.lacks[i])
		}
	}
	return short, most
}

// end turns the claim into a part of the hold, or gives back what it has. It
// holds account.mu.
func (c *claim) end(complete bool) {
	if complete {
		c.hold.nano += c.nano
		return
	}
	for i, p := range c.hold.pots[:c.hold.n] {
		p.held -= c.got[i]
	}
}

// fetch draws for a hold that found too little here, while others wait.
//
// The first draw asks for more than the hold, at all wallets at once. Where one
// of them refuses, money is scarce: each wallet is asked for exactly what is
// missing there, what others hold idle is recalled (by the refusal itself), and
// only then the hold is refused.
func (f *Funds) fetch(ctx context.Context, h *Hold, nano int64, t *turn) error {
	// What is drawn is for others too, whether or not this caller stays.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*f.cfg.Timeout)
	defer cancel()
	c := &claim{hold: h, nano: nano}
	err := f.draw(ctx, c)
	if isBroke(err) {
		err = f.scrape(ctx, c)
	}
	broke, refused := errors.AsType[*Broke](err)
	if err != nil && !refused {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		t.err = err
	}
	f.endTurn(h.account, t)
	switch {
	case refused:
		return f.refuse(broke)
	case err != nil:
		return f.unavailable(err)
	default:
		return nil
	}
}

// endTurn lets the next one have it. A return that was due meanwhile was put
// off.
func (f *Funds) endTurn(a *account, t *turn) {
	a.mu.Lock()
	a.turn = nil
	tight := a.tight(f.now)
	a.mu.Unlock()
	close(t.done)
	if tight {
		f.returnSoon(a)
	}
}

// draw asks all wallets that are short at once.
func (f *Funds) draw(ctx context.Context, c *claim) error {
	a := c.hold.account
	short, least := c.begin(f.now())
	a.mu.Lock()
	want := a.want(least, f.cfg.ChunkMax, f.now)
	a.mu.Unlock()
	var err error
	if least > 0 { // else something came back meanwhile
		err = f.fill(ctx, c, short, least, want)
	}
	a.mu.Lock()
	c.end(err == nil)
	a.mu.Unlock()
	return err
}

// want sizes a draw. It holds mu.
func (a *account) want(least, most int64, now func() time.Time) int64 {
	at := now()
	switch {
	case a.tight(now):
		return least
	case at.Sub(a.drawnAt) < pace:
		a.size = min(2*max(a.size, least), most)
	default:
		a.size = min(max(a.size, least), most)
	}
	a.drawnAt = at
	return max(a.size, min(least+a.waiting, most), least)
}

// fill adds a draw to the pots, of which the claim has its part at once.
func (f *Funds) fill(ctx context.Context, c *claim, nodes []string, least, want int64) error {
	asked := f.now()
	if asked.UnixNano() < f.away.Load() {
		return errAway
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	got, err := f.till.draw(ctx, c.hold.account.tenant, nodes, least, want)
	f.metrics.drew(err)
	c.hold.account.mu.Lock()
	defer c.hold.account.mu.Unlock()
	if err != nil {
		if !isBroke(err) {
			f.away.Store(f.now().Add(awayFor).UnixNano())
			for _, p := range c.hold.pots[:c.hold.n] {
				p.dirty = p.dirty || slices.Contains(nodes, p.node)
			}
		}
		return err
	}
	for _, d := range got {
		c.hold.account.forgive(d.node)
		for i, p := range c.hold.pots[:c.hold.n] {
			if p.node == d.node {
				f.fillPot(p, d, asked)
				p.hold(c.nano-c.got[i], p.free(f.now()))
				c.got[i] = c.nano
			}
		}
	}
	return nil
}

// fillPot holds account.mu.
func (f *Funds) fillPot(p *pot, d share, asked time.Time) {
	if d.chunk == 0 {
		p.lose()
		p.uncapp = asked.Add(uncappedFor)
		return
	}
	p.add(d.chunk, d.nano, asked.Add(f.cfg.ChunkTTL-f.cfg.margin()))
}

var errAway = errors.New("postgres did not answer a moment ago")

// scrape gets a hold together near the floor of a wallet: exactly what is
// missing at each, and what others return.
func (f *Funds) scrape(ctx context.Context, c *claim) error {
	a := c.hold.account
	f.tighten(a)
	err := f.drawExactly(ctx, c)
	if !isBroke(err) {
		return err
	}
	// Another process may be short of the same money, and lack what is here.
	f.returnAll(ctx, a)
	if a.refusedLately() { // nobody has returned anything since: it is all spent
		f.remember(a, err)
		return err
	}
	for _, pause := range patience() {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if err = f.drawExactly(ctx, c); !isBroke(err) {
			return err
		}
	}
	f.remember(a, err)
	return err
}

func isBroke(err error) bool {
	_, ok := errors.AsType[*Broke](err)
	return ok
}

// tighten keeps a tenant's money from lying idle here.
func (f *Funds) tighten(a *account) {
	a.mu.Lock()
	a.scarce = f.now().Add(scarceFor)
	a.size = 0
	a.mu.Unlock()
}

// drawExactly asks the wallets one by one for what is missing there. What was
// drawn for a hold that another wallet refuses goes back with all that is idle.
func (f *Funds) drawExactly(ctx context.Context, c *claim) (err error) {
	short, _ := c.begin(f.now())
	defer func() {
		c.hold.account.mu.Lock()
		defer c.hold.account.mu.Unlock()
		c.end(err == nil)
	}()
	for i, p := range c.hold.pots[:c.hold.n] {
		if !slices.Contains(short, p.node) {
			continue
		}
		here := c.got[i]
		err := f.fill(ctx, c, []string{p.node}, c.lacks[i], c.lacks[i])
		if broke, refused := errors.AsType[*Broke](err); refused {
			there := max(broke.AvailableNano, 0)
			return &Broke{Node: p.node, AvailableNano: there + here, there: there}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refusedLately reports that the last question was refused, too.
func (a *account) refusedLately() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused.times > 0
}

// remember keeps a refusal for those who ask next.
func (f *Funds) remember(a *account, err error) {
	broke, refused := errors.AsType[*Broke](err)
	if !refused {
		return
	}
	a.mu.Lock()
	next := refusal{node: broke.Node, available: broke.there, times: a.refused.times + 1}
	next.until = f.now().Add(a.refused.believe())
	a.refused = next
	a.mu.Unlock()
}
