package pool_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler/pool"
)

// zone answers for a DNS server.
type zone struct {
	mu        sync.Mutex
	addresses []string
	records   []*net.SRV
	err       error
	hangs     bool
}

func (z *zone) set(change func(z *zone)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.addresses, z.records, z.err, z.hangs = nil, nil, nil, false
	change(z)
}

func (z *zone) answer(ctx context.Context, name string) error {
	z.mu.Lock()
	hangs, err := z.hangs, z.err
	z.mu.Unlock()
	if name != "engines.example" {
		return errors.New("asked for another name")
	}
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (z *zone) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	if err := z.answer(ctx, host); err != nil {
		return nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	var all []netip.Addr
	for _, a := range z.addresses {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

func (z *zone) LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error) {
	if err := z.answer(ctx, name); err != nil || service != "" || proto != "" {
		return "", nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	return name, z.records, nil
}

const interval = 5 * time.Second

// pass lets the source ask about once more, whatever the jitter.
func pass(times int) { synctest.Sleep(time.Duration(times) * interval * 13 / 10) }

func TestAddressesAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		z := &zone{addresses: []string{"10.0.0.2", "10.0.0.1", "::ffff:10.0.0.1", "fd00::1"}}
		f := follow(t, pool.DNS{Name: "engines.example", Port: 8000, Scheme: "https", Interval: interval, Resolver: z})
		synctest.Wait()
		const all = "10.0.0.1:8000=https://10.0.0.1:8000 10.0.0.2:8000=https://10.0.0.2:8000 [fd00::1]:8000=https://[fd00::1]:8000"
		if got := f.ids(); got != all {
			t.Errorf("found %q, want each address once, in order", got)
		}
		z.set(func(z *zone) { z.addresses = []string{"fd00::1", "10.0.0.1", "10.0.0.2"} })
		pass(3)
		if f.times != 1 {
			t.Errorf("%d reports of the same addresses in another order, want 1", f.times)
		}
		z.set(func(z *zone) { z.addresses = []string{"10.0.0.3"} })
		pass(1)
		if got := f.ids(); got != "10.0.0.3:8000=https://10.0.0.3:8000" {
			t.Errorf("found %q after the change", got)
		}
	})
}

func TestFailedLookupKeepsTheLastGoodSet(t *testing.T) {
	t.Parallel()
	tests := map[string]func(z *zone){
		"the server fails":           func(z *zone) { z.err = &net.DNSError{Err: "server misbehaving", IsTemporary: true} },
		"the server doesn't answer":  func(z *zone) { z.hangs = true },
		"the network is unreachable": func(z *zone) { z.err = errors.New("unreachable") },
	}
	for name, fail := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				z := &zone{addresses: []string{"10.0.0.1"}}
				f := follow(t, pool.DNS{Name: "engines.example", Port: 1, Interval: interval, Resolver: z})
				synctest.Wait()
				z.set(fail)
				pass(10)
				if got := f.ids(); got != "10.0.0.1:1=http://10.0.0.1:1" {
					t.Errorf("found %q, want the last good set", got)
				}
				if n := strings.Count(f.logged(), "last good set"); n != 1 {
					t.Errorf("%d complaints about one failure, want 1", n)
				}
				z.set(func(z *zone) { z.addresses = []string{"10.0.0.2"} })
				pass(3)
				if got := f.ids(); got != "10.0.0.2:1=http://10.0.0.2:1" {
					t.Errorf("found %q once it answers again", got)
				}
			})
		})
	}
}

func TestNameWithoutRecordsIsEmptyOnceThatIsCertain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		z := &zone{addresses: []string{"10.0.0.1"}}
		f := follow(t, pool.DNS{Name: "engines.example", Port: 1, Interval: interval, Resolver: z})
		synctest.Wait()
		absent := func(z *zone) { z.err = &net.DNSError{Err: "no such host", IsNotFound: true} }
		z.set(absent)
		pass(1)
		if f.ids() == "" {
			t.Error("one denial emptied the pool")
		}
		z.set(func(z *zone) { z.addresses = []string{"10.0.0.1"} })
		pass(1)
		z.set(absent)
		pass(1)
		if f.ids() == "" {
			t.Error("denials were counted across an answer")
		}
		pass(4)
		if got := f.ids(); got != "" {
			t.Errorf("found %q after a name was denied again and again, want none", got)
		}
		z.set(func(z *zone) { z.addresses = []string{"10.0.0.1"} })
		pass(1)
		if f.ids() == "" {
			t.Error("the pool stays empty though the name has an address again")
		}
	})
}

func TestServiceRecordsNameHostsAndPorts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		z := &zone{records: []*net.SRV{
			{Target: "b.example.", Port: 8002, Priority: 1, Weight: 9},
			{Target: "a.example.", Port: 8001, Priority: 1},
			{Target: "spare.example.", Port: 8003, Priority: 2},
			{Target: "odd/host.", Port: 8004, Priority: 1},
		}}
		f := follow(t, pool.DNS{Name: "engines.example", SRV: true, Resolver: z})
		synctest.Wait()
		if got := f.ids(); got != "a.example:8001=http://a.example:8001 b.example:8002=http://b.example:8002" {
			t.Errorf("found %q, want the hosts of the first priority", got)
		}
	})
}
