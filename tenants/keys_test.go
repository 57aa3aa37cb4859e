package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

func TestPrincipalHasWhatIsStored(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	plans := standardPlans()
	for name, p := range plans {
		p.Name = name
		plans[name] = p
	}
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	standard, shared := plans["standard"], plans["shared"]
	tests := []struct {
		name string
		plan string
		spec tenants.KeySpec
		want tenants.Principal
	}{
		{
			"a plain key has its plan's key limits and its tenant's fairness id", "standard", h.spec(),
			tenants.Principal{
				Project: h.project.ID, Kind: tenants.ProjectKey, Plan: &standard, FairnessID: h.tenant.FairnessID,
				Limits:        tenants.Limits{RequestsPerMinute: 60, Concurrency: 5},
				ProjectLimits: standard.ProjectLimits,
			},
		},
		{
			"a key's own values", "standard",
			tenants.KeySpec{
				Kind: tenants.ServiceKey, Project: h.project.ID, Name: "x", Scopes: []string{tenants.ScopeChat}, Models: []string{"m"},
				Limits: tenants.Limits{RequestsPerMinute: 7, TokensPerMinute: 8}, ExpiresAt: expires,
			},
			tenants.Principal{
				Project: h.project.ID, Kind: tenants.ServiceKey, Plan: &standard, FairnessID: h.tenant.FairnessID,
				Limits:        tenants.Limits{RequestsPerMinute: 7, TokensPerMinute: 8, Concurrency: 5},
				ProjectLimits: standard.ProjectLimits,
				Scopes:        []string{tenants.ScopeChat}, Models: []string{"m"}, ExpiresAt: expires,
			},
		},
		{
			"fairness by project", "shared", h.spec(),
			tenants.Principal{Project: h.project.ID, Kind: tenants.ProjectKey, Plan: &shared, FairnessID: h.project.FairnessID},
		},
		{
			"an administration key has no project to be fair by", "shared",
			tenants.KeySpec{Kind: tenants.AdminKey, Name: "x"},
			tenants.Principal{Kind: tenants.AdminKey, Plan: &shared, FairnessID: h.tenant.FairnessID},
		},
	}
	for _, tt := range tests { // not parallel: the tenant changes its plan
		if err := h.SetPlan(t.Context(), actor, h.tenant.ID, tt.plan); err != nil {
			t.Fatal(err)
		}
		secret, key := h.key(t, tt.spec)
		tt.want.Tenant, tt.want.Key = h.tenant.ID, key.ID
		tt.want.Billing.Nodes = []string{string(h.tenant.ID)}
		got := mustAuth(t, h.keys(t, tenants.KeysConfig{}), secret)
		emptyIsNil := cmp.Transformer("empty", func(l []string) []string { return append([]string(nil), l...) })
		if diff := cmp.Diff(tt.want, *got, emptyIsNil); diff != "" {
			t.Errorf("%s:\n%s", tt.name, diff)
		}
	}
}

func TestWhateverIsWrongWithAKeyIsOneError(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	revoked, revokedKey := h.key(t, h.spec())
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, revokedKey.ID); err != nil {
		t.Fatal(err)
	}
	expired, expiredKey := h.key(t, h.spec())
	h.app(t, `UPDATE keys SET expires_at = now() WHERE id = $1`, expiredKey.ID)
	gone, goneKey := h.key(t, h.spec())
	h.owner(t, `ALTER TABLE keys NO FORCE ROW LEVEL SECURITY`)
	h.owner(t, `DELETE FROM keys WHERE id = $1`, goneKey.ID)
	h.owner(t, `ALTER TABLE keys FORCE ROW LEVEL SECURITY`)
	good, _ := h.key(t, h.spec())
	elsewhere := tenants.NewKeys(testLog(t), h.db.Worker, pepper(t, 9), tenants.KeysConfig{}, time.Now)

	k := h.keys(t, tenants.KeysConfig{})
	tests := []struct {
		name   string
		keys   *tenants.Keys
		secret string
		want   error
	}{
		{"malformed", k, "weir_sk_x", tenants.ErrMalformedKey},
		{"empty", k, "", tenants.ErrMalformedKey},
		{"unknown", k, gone, tenants.ErrUnknownKey},
		{"revoked", k, revoked, tenants.ErrRevoked},
		{"expired", k, expired, tenants.ErrExpired},
		{"hashed under another pepper", elsewhere, good, tenants.ErrUnknownKey},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, how := range []string{"cold", "cached"} {
				p, err := auth(t, tt.keys, tt.secret)
				if p != nil || !errors.Is(err, tt.want) || !errors.Is(err, tenants.ErrBadKey) {
					t.Errorf("%s: Authenticate = %v, %v; want %v, a bad key", how, p, err, tt.want)
				}
			}
		})
	}
	t.Run("a malformed key is refused without a look-up", func(t *testing.T) {
		t.Parallel()
		var c counter
		k := tenants.NewKeys(testLog(t), h.workerPool(t, nil, &c), h.peppers, tenants.KeysConfig{}, time.Now)
		for range 10 {
			_, _ = auth(t, k, good[:len(good)-1]+"!")
		}
		if n := c.total.Load(); n != 0 {
			t.Errorf("%d look-ups", n)
		}
	})
}

func TestAddressesAndSuspensionAreNotBadKeys(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	spec := h.spec()
	spec.CIDRs = []string{"192.0.2.0/24", "2001:db8::/32"}
	secret, _ := h.key(t, spec)
	k := h.keys(t, tenants.KeysConfig{NegativeTTL: time.Millisecond})
	for client, want := range map[string]error{
		"192.0.2.200": nil, "::ffff:192.0.2.1": nil, "2001:db8::9": nil,
		"192.0.3.1": tenants.ErrAddress, "2001:db9::": tenants.ErrAddress, "127.0.0.1": tenants.ErrAddress,
	} {
		for range 2 { // a refused address is not remembered for the next one
			if _, err := k.Authenticate(t.Context(), secret, netip.MustParseAddr(client)); !errors.Is(err, want) {
				t.Errorf("from %s: %v, want %v", client, err, want)
			}
		}
	}
	if _, err := k.Authenticate(t.Context(), secret, netip.Addr{}); !errors.Is(err, tenants.ErrAddress) {
		t.Errorf("from an unknown address: %v, want ErrAddress", err)
	}
	if err := h.Suspend(t.Context(), actor, h.tenant.ID); err != nil {
		t.Fatal(err)
	}
	k = h.keys(t, tenants.KeysConfig{})
	if _, err := auth(t, k, secret); !errors.Is(err, tenants.ErrSuspended) || errors.Is(err, tenants.ErrBadKey) {
		t.Errorf("suspended: %v, want ErrSuspended and not a bad key", err)
	}
}

// takenAway are the ways in which access goes away or changes.
func takenAway(h *house) []struct {
	name   string
	change func(*testing.T, tenants.Key)
	want   error                         // of Authenticate
	seen   func(*tenants.Principal) bool // what the principal shows, where the key still works
	cuts   bool                          // running requests
} {
	type row = struct {
		name   string
		change func(*testing.T, tenants.Key)
		want   error
		seen   func(*tenants.Principal) bool
		cuts   bool
	}
	set := func(sql string) func(*testing.T, tenants.Key) {
		return func(t *testing.T, k tenants.Key) { t.Helper(); h.app(t, sql, k.ID) }
	}
	return []row{
		{"the key is revoked", func(t *testing.T, k tenants.Key) {
			t.Helper()
			if err := h.RevokeKey(t.Context(), actor, k.Tenant, k.ID); err != nil {
				t.Fatal(err)
			}
		}, tenants.ErrRevoked, nil, true},
		{"the key is made to expire", set(`UPDATE keys SET expires_at = now() WHERE id = $1`), tenants.ErrExpired, nil, true},
		{
			"a scope is taken", set(`UPDATE keys SET scopes = '{models:read}' WHERE id = $1`), nil,
			func(p *tenants.Principal) bool { return !p.Allows(tenants.ScopeChat) }, false,
		},
		{
			"a model is taken", set(`UPDATE keys SET models = '{other}' WHERE id = $1`), nil,
			func(p *tenants.Principal) bool { return !p.MayUse("m") }, false,
		},
		{"an address list is set", set(`UPDATE keys SET cidrs = '{10.0.0.0/8}' WHERE id = $1`), tenants.ErrAddress, nil, false},
		{
			"a limit is set", set(`UPDATE keys SET limits = '{"concurrency": 1}' WHERE id = $1`), nil,
			func(p *tenants.Principal) bool { return p.Limits.Concurrency == 1 }, false,
		},
		{
			"the fairness id is rotated", set(`UPDATE tenants SET fairness_id = 'rotated ' || $1`), nil,
			func(p *tenants.Principal) bool { return len(p.FairnessID) > 8 && p.FairnessID[:8] == "rotated " }, false,
		},
		{"the plan is changed", func(t *testing.T, _ tenants.Key) {
			t.Helper()
			plan := standardPlans()["standard"]
			plan.Weight = 77
			err := pgx.BeginFunc(t.Context(), h.db.App, func(tx pgx.Tx) error {
				return tenants.PutPlans(t.Context(), tx, map[string]tenants.Plan{"standard": plan})
			})
			if err != nil {
				t.Fatal(err)
			}
		}, nil, func(p *tenants.Principal) bool { return p.Plan.Weight == 77 }, false},
		{"the tenant gets another plan", func(t *testing.T, k tenants.Key) {
			t.Helper()
			if err := h.SetPlan(t.Context(), actor, k.Tenant, "shared"); err != nil {
				t.Fatal(err)
			}
		}, nil, func(p *tenants.Principal) bool { return p.Plan.Name == "shared" }, false},
		{
			"the project's fairness id is rotated", set(`UPDATE projects SET fairness_id = 'again ' || $1 WHERE name = 'default'`), nil,
			func(p *tenants.Principal) bool { return len(p.FairnessID) > 6 && p.FairnessID[:6] == "again " }, false,
		},
		{"the tenant is suspended", func(t *testing.T, k tenants.Key) {
			t.Helper()
			if err := h.Suspend(t.Context(), actor, k.Tenant); err != nil {
				t.Fatal(err)
			}
		}, tenants.ErrSuspended, nil, true},
	}
}

// The bounds of the second half are a tenth of the defaults.
func TestChangesReachEveryReplicaAndItsRunningRequests(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		name      string
		cfg       tenants.KeysConfig
		announced bool
		within    time.Duration
	}{
		// Ages that never come, so that only announcements can do it.
		{"announced", tenants.KeysConfig{TTL: time.Hour, NegativeTTL: time.Hour, Recheck: time.Hour}, true, time.Second},
		{"unannounced", tenants.KeysConfig{TTL: 500 * time.Millisecond, NegativeTTL: 200 * time.Millisecond, Recheck: 400 * time.Millisecond}, false, 700 * time.Millisecond},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			if !mode.announced {
				for _, table := range []string{"plans", "tenants", "projects", "keys"} {
					h.owner(t, `ALTER TABLE `+table+` DISABLE TRIGGER notify_auth`)
				}
			}
			first, second := run(t, h.keys(t, mode.cfg)), run(t, h.keys(t, mode.cfg))
			for _, way := range takenAway(h) { // in turn: they change one tenant
				secret, key := h.key(t, h.spec())
				bystander, _ := h.key(t, h.spec())
				mustAuth(t, first, secret)
				p := mustAuth(t, second, secret)
				running, release := second.Guard(t.Context(), p)
				others, releaseOthers := second.Guard(t.Context(), mustAuth(t, second, bystander))

				way.change(t, key)
				eventually(t, mode.within, way.name+": both replicas know", func() bool {
					for _, k := range []*tenants.Keys{first, second} {
						p, err := auth(t, k, secret)
						if !errors.Is(err, way.want) || err == nil && !way.seen(p) {
							return false
						}
					}
					return true
				})
				if way.cuts {
					select {
					case <-running.Done():
						if cause := context.Cause(running); !errors.Is(cause, tenants.ErrRevoked) {
							t.Errorf("%s: running requests end for %v, want ErrRevoked", way.name, cause)
						}
					case <-time.After(mode.within):
						t.Errorf("%s: running requests go on", way.name)
					}
				} else if err := running.Err(); err != nil {
					t.Errorf("%s: running requests end: %v", way.name, err)
				}
				if _, err := auth(t, second, bystander); err != nil && !errors.Is(err, tenants.ErrSuspended) {
					t.Errorf("%s: another key: %v", way.name, err)
				}
				if err := others.Err(); err != nil && !errors.Is(way.want, tenants.ErrSuspended) {
					t.Errorf("%s: another key's requests end: %v", way.name, err)
				}
				release()
				releaseOthers()
			}
		})
	}
}

func TestARunningRequestIsCutWithinFiveSecondsByDefaultWhenNothingIsAnnounced(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for the default bound")
	}
	h := newHouse(t)
	h.owner(t, `ALTER TABLE keys DISABLE TRIGGER notify_auth`)
	k := run(t, h.keys(t, tenants.KeysConfig{}))
	secret, key := h.key(t, h.spec())
	running, release := k.Guard(t.Context(), mustAuth(t, k, secret))
	defer release()
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, key.ID); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	select {
	case <-running.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the request goes on after 5 s")
	}
	// The entry is as old as the request; then one look-up tells.
	eventually(t, 6*time.Second-time.Since(revoked), "the key is refused", func() bool {
		_, err := auth(t, k, secret)
		return errors.Is(err, tenants.ErrRevoked)
	})
}

// killListeners ends the connections over which changes are announced.
func (h *house) killListeners(t *testing.T) {
	t.Helper()
	var killed int
	err := h.db.Worker.QueryRow(t.Context(), `
		SELECT count(*) FILTER (WHERE pg_terminate_backend(pid))
		  FROM pg_stat_activity
		 WHERE datname = current_database()
		   AND query = 'LISTEN weir_auth'`).Scan(&killed)
	if err != nil || killed == 0 {
		t.Fatalf("%d listeners were killed, %v", killed, err)
	}
}

func TestALostListenerIsReplacedAndWhatItMissedIsNoticed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	// Only the new listener's arrival can tell: no announcement and no age does.
	h.owner(t, `ALTER TABLE keys DISABLE TRIGGER notify_auth`)
	k := run(t, h.keys(t, tenants.KeysConfig{TTL: time.Hour, Recheck: time.Hour}))
	secret, key := h.key(t, h.spec())
	running, release := k.Guard(t.Context(), mustAuth(t, k, secret))
	defer release()
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, key.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := auth(t, k, secret); err != nil {
		t.Fatalf("the test loses no announcement: %v", err)
	}
	h.killListeners(t)
	eventually(t, 5*time.Second, "the key is refused", func() bool {
		_, err := auth(t, k, secret)
		return errors.Is(err, tenants.ErrRevoked)
	})
	select {
	case <-running.Done():
	case <-time.After(5 * time.Second):
		t.Error("the request goes on")
	}
	eventually(t, 5*time.Second, "it listens again", k.Listening)

	h.owner(t, `ALTER TABLE keys ENABLE TRIGGER notify_auth`)
	secret, key = h.key(t, h.spec())
	mustAuth(t, k, secret)
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, key.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "the new listener hears", func() bool {
		_, err := auth(t, k, secret)
		return errors.Is(err, tenants.ErrRevoked)
	})
}

func TestAListenerOutlivesSilence(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	k := run(t, h.keys(t, tenants.KeysConfig{TTL: 20 * time.Millisecond, Recheck: time.Hour}))
	pid := func() (pid int) {
		err := h.db.Worker.QueryRow(t.Context(), `
			SELECT pid FROM pg_stat_activity
			 WHERE datname = current_database() AND query IN ('LISTEN weir_auth', '-- ping') AND pid <> pg_backend_pid()`).Scan(&pid)
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	before := pid()
	eventually(t, 5*time.Second, "it was pinged", func() bool {
		var pinged bool
		err := h.db.Worker.QueryRow(t.Context(), `SELECT query <> 'LISTEN weir_auth' FROM pg_stat_activity WHERE pid = $1`, before).Scan(&pinged)
		return err == nil && pinged
	})
	secret, key := h.key(t, h.spec())
	running, release := k.Guard(t.Context(), mustAuth(t, k, secret))
	defer release()
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, key.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case <-running.Done():
	case <-time.After(time.Second):
		t.Error("it no longer hears")
	}
	if !k.Listening() || pid() != before {
		t.Error("the connection was replaced")
	}
}

func TestKnownKeysOutlastAnOutageForAWhile(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var l line
	var c clock
	k := run(t, tenants.NewKeys(testLog(t), h.workerPool(t, &l, nil), h.peppers, tenants.KeysConfig{LookupTimeout: time.Second}, c.now))
	seen, _ := h.key(t, h.spec())
	unseen, _ := h.key(t, h.spec())
	expires := h.spec()
	expires.ExpiresAt = time.Now().Add(20 * time.Second)
	expiring, _ := h.key(t, expires)
	revoked, revokedKey := h.key(t, h.spec())
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, revokedKey.ID); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{seen, expiring} {
		mustAuth(t, k, secret)
	}
	_, _ = auth(t, k, revoked)
	unknown, unknownKey := h.key(t, h.spec())
	h.owner(t, `UPDATE keys SET hash = decode(repeat('00', 32), 'hex') WHERE id = $1`, unknownKey.ID)

	l.set(true)
	eventually(t, 5*time.Second, "the loss is noticed", func() bool { return !k.Listening() })
	c.advance(6 * time.Second) // older than TTL
	if _, err := auth(t, k, seen); err != nil {
		t.Errorf("a key already seen: %v", err)
	}
	if _, err := auth(t, k, revoked); !errors.Is(err, tenants.ErrRevoked) {
		t.Errorf("a key known as revoked: %v, want ErrRevoked", err)
	}
	for what, secret := range map[string]string{"not seen yet": unseen, "unknown": unknown} {
		if _, err := auth(t, k, secret); !errors.Is(err, tenants.ErrUnavailable) || errors.Is(err, tenants.ErrBadKey) {
			t.Errorf("a key %s: %v, want ErrUnavailable and not a bad key", what, err)
		}
	}
	c.advance(15 * time.Second)
	if _, err := auth(t, k, seen); err != nil {
		t.Errorf("a key already seen, after 21 s: %v", err)
	}
	if _, err := auth(t, k, expiring); !errors.Is(err, tenants.ErrExpired) {
		t.Errorf("a key that expired meanwhile: %v, want ErrExpired", err)
	}
	c.advance(9*time.Second + time.Millisecond)
	if _, err := auth(t, k, seen); !errors.Is(err, tenants.ErrUnavailable) {
		t.Errorf("a key already seen, after 30 s: %v, want ErrUnavailable", err)
	}

	l.set(false)
	eventually(t, 10*time.Second, "all is as before", func() bool {
		_, err := auth(t, k, seen)
		return err == nil && k.Listening()
	})
	mustAuth(t, k, unseen)
}

func TestAnOutageMakesNobodyWaitAtEachRequest(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var l line
	var c clock
	k := tenants.NewKeys(testLog(t), h.workerPool(t, &l, nil), h.peppers, tenants.KeysConfig{LookupTimeout: 300 * time.Millisecond}, c.now)
	secret, _ := h.key(t, h.spec())
	mustAuth(t, k, secret)
	// Postgres hangs: it holds the look-up rather than refusing it.
	err := pgx.BeginFunc(t.Context(), h.db.Owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `LOCK TABLE keys IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		c.advance(6 * time.Second)
		start := time.Now()
		for range 1000 {
			mustAuth(t, k, secret)
		}
		if waited := time.Since(start); waited > time.Second {
			t.Errorf("1,000 requests waited %s, want about one time limit of 300 ms", waited)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestALookUpThatARevocationOvertakesIsNotKept(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	k := run(t, h.keys(t, tenants.KeysConfig{TTL: time.Hour, Recheck: time.Hour, LookupTimeout: 10 * time.Second}))
	for range 20 {
		secret, key := h.key(t, h.spec())
		var wg sync.WaitGroup
		// The look-up takes its snapshot, then waits for the lock, and so
		// returns the key as it was before the revocation.
		err := pgx.BeginFunc(t.Context(), h.db.Owner, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `LOCK TABLE keys IN ACCESS EXCLUSIVE MODE`); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), `UPDATE keys SET revoked_at = now() WHERE id = $1`, key.ID); err != nil {
				return err
			}
			wg.Go(func() {
				p, err := auth(t, k, secret)
				if err == nil { // it was let in as of before: then its request is cut
					running, release := k.Guard(t.Context(), p)
					defer release()
					select {
					case <-running.Done():
					case <-time.After(5 * time.Second):
						t.Error("a request that slipped through goes on")
					}
				} else if !errors.Is(err, tenants.ErrRevoked) {
					t.Error(err)
				}
			})
			eventually(t, 5*time.Second, "the look-up waits", func() bool {
				var waiting bool
				err := tx.QueryRow(t.Context(), `
					SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'keys'::regclass AND NOT granted)`).Scan(&waiting)
				return err == nil && waiting
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		eventually(t, time.Second, "the key is refused", func() bool {
			_, err := auth(t, k, secret)
			return errors.Is(err, tenants.ErrRevoked)
		})
	}
}

func TestWhoAsksAfterARevocationWasHeardIsRefused(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	k := run(t, h.keys(t, tenants.KeysConfig{TTL: time.Hour, Recheck: time.Hour, LookupTimeout: 10 * time.Second}))
	secret, key := h.key(t, h.spec())
	witness, witnessKey := h.key(t, h.spec())
	witnessed, release := k.Guard(t.Context(), mustAuth(t, k, witness))
	defer release()

	early, late := make(chan error, 1), make(chan error, 1)
	ask := func(answer chan<- error) {
		_, err := auth(t, k, secret)
		answer <- err
	}
	err := pgx.BeginFunc(t.Context(), h.db.Owner, func(tx pgx.Tx) error {
		// A look-up begins and is held, with the view of this moment.
		if _, err := tx.Exec(t.Context(), `LOCK TABLE projects IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		go ask(early)
		eventually(t, 5*time.Second, "the look-up waits", func() bool {
			var waiting bool
			err := tx.QueryRow(t.Context(), `
				SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'projects'::regclass AND NOT granted)`).Scan(&waiting)
			return err == nil && waiting
		})
		for _, id := range []tenants.KeyID{key.ID, witnessKey.ID} {
			if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, id); err != nil {
				return err
			}
		}
		<-witnessed.Done() // so the announcement before it was heard too
		go ask(late)       // joins the look-up, most likely
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for who, answer := range map[string]chan error{"early": early, "late": late} {
		if err := <-answer; !errors.Is(err, tenants.ErrRevoked) {
			t.Errorf("who asked %s got %v, want ErrRevoked", who, err)
		}
	}
}

func TestAGuardThatComesTooLateIsCut(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	k := run(t, h.keys(t, tenants.KeysConfig{TTL: time.Hour, Recheck: time.Hour}))
	secret, key := h.key(t, h.spec())
	p := mustAuth(t, k, secret)
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, key.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "the announcement came and went", func() bool {
		_, err := auth(t, k, secret)
		return errors.Is(err, tenants.ErrRevoked)
	})
	running, release := k.Guard(t.Context(), p)
	defer release()
	select {
	case <-running.Done():
		if cause := context.Cause(running); !errors.Is(cause, tenants.ErrRevoked) {
			t.Errorf("cause %v, want ErrRevoked", cause)
		}
	case <-time.After(time.Second):
		t.Error("the request goes on")
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	k := run(t, h.keys(t, tenants.KeysConfig{}))
	secret, _ := h.key(t, h.spec())
	p := mustAuth(t, k, secret)

	t.Run("expiry ends it to the moment, without Postgres", func(t *testing.T) {
		t.Parallel()
		idle := h.keys(t, tenants.KeysConfig{})
		spec := h.spec()
		spec.ExpiresAt = time.Now().Add(400 * time.Millisecond)
		secret, _ := h.key(t, spec)
		running, release := idle.Guard(t.Context(), mustAuth(t, idle, secret))
		defer release()
		select {
		case <-running.Done():
			if early := time.Until(spec.ExpiresAt); early > 0 {
				t.Errorf("%s too early", early)
			}
			if cause := context.Cause(running); !errors.Is(cause, tenants.ErrRevoked) {
				t.Errorf("cause %v, want ErrRevoked", cause)
			}
		case <-time.After(3 * time.Second):
			t.Error("the request outlives its key")
		}
	})
	t.Run("the caller's own end keeps its cause", func(t *testing.T) {
		t.Parallel()
		left := errors.New("left")
		ctx, cancel := context.WithCancelCause(t.Context())
		running, release := k.Guard(ctx, p)
		defer release()
		cancel(left)
		<-running.Done()
		if cause := context.Cause(running); !errors.Is(cause, left) {
			t.Errorf("cause %v, want the caller's", cause)
		}
	})
	t.Run("a released request ends without blame, and twice is no harm", func(t *testing.T) {
		t.Parallel()
		running, release := k.Guard(t.Context(), p)
		release()
		release()
		if cause := context.Cause(running); !errors.Is(cause, context.Canceled) || errors.Is(cause, tenants.ErrRevoked) {
			t.Errorf("cause %v, want plain cancellation", cause)
		}
	})
}

func TestManyCallersOfOneColdKeyMakeOneLookUp(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var c counter
	k := tenants.NewKeys(testLog(t), h.workerPool(t, nil, &c), h.peppers, tenants.KeysConfig{LookupTimeout: 10 * time.Second}, time.Now)
	secret, _ := h.key(t, h.spec())
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	err := pgx.BeginFunc(t.Context(), h.db.Owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `LOCK TABLE keys IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		impatient := make(chan error, 1)
		go func() {
			_, err := k.Authenticate(ctx, secret, netip.Addr{})
			impatient <- err
		}()
		eventually(t, 5*time.Second, "the look-up began", func() bool { return c.running.Load() == 1 })
		for range 100 {
			wg.Go(func() {
				if _, err := auth(t, k, secret); err != nil {
					t.Error(err)
				}
			})
		}
		leave() // the one who began it: the others still get their answer
		if err := <-impatient; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller who left got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := c.total.Load(); n != 1 {
		t.Errorf("%d look-ups, want 1", n)
	}
}

func TestAFloodOfUnknownKeysLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var c counter
	k := tenants.NewKeys(testLog(t), h.workerPool(t, nil, &c), h.peppers, tenants.KeysConfig{LookupTimeout: 10 * time.Second}, time.Now)
	var secrets []string
	for range 40 {
		secret, _ := h.key(t, h.spec())
		secrets = append(secrets, secret)
	}
	h.owner(t, `UPDATE keys SET hash = sha256(id::bytea)`)
	var wg sync.WaitGroup
	for _, secret := range secrets {
		for range 3 {
			wg.Go(func() {
				if _, err := auth(t, k, secret); !errors.Is(err, tenants.ErrUnknownKey) {
					t.Errorf("error %v, want ErrUnknownKey", err)
				}
			})
		}
	}
	wg.Wait()
	if most := c.most.Load(); most > 2 {
		t.Errorf("%d of 4 connections were busy with look-ups at once, want at most 2", most)
	}
	before := c.total.Load()
	for _, secret := range secrets {
		_, _ = auth(t, k, secret)
	}
	if again := c.total.Load() - before; again != 0 {
		t.Errorf("%d look-ups for keys just found unknown", again)
	}
}

func TestPeppersRotateWithoutBreakingKeys(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	old, _ := h.key(t, h.spec())
	both := pepper(t, 2, 1)
	h.Store = tenants.NewStore(h.db.App, both, time.Now)
	fresh, _ := h.key(t, h.spec())
	during := tenants.NewKeys(testLog(t), h.db.Worker, both, tenants.KeysConfig{}, time.Now)
	after := tenants.NewKeys(testLog(t), h.db.Worker, pepper(t, 2), tenants.KeysConfig{}, time.Now)
	mustAuth(t, during, old)
	mustAuth(t, during, fresh)
	mustAuth(t, after, fresh)
	if _, err := auth(t, after, old); !errors.Is(err, tenants.ErrUnknownKey) {
		t.Errorf("a key of a retired pepper: %v, want ErrUnknownKey", err)
	}
	// Right hash, wrong version: the row was tampered with.
	h.owner(t, `UPDATE keys SET pepper_version = 3 - pepper_version`)
	again := tenants.NewKeys(testLog(t), h.db.Worker, both, tenants.KeysConfig{}, time.Now)
	if _, err := auth(t, again, old); !errors.Is(err, tenants.ErrUnknownKey) {
		t.Errorf("a row with another pepper's version: %v, want ErrUnknownKey", err)
	}
}

func TestLastUseIsWrittenDown(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	lastUse := func(id tenants.KeyID) (at time.Time) {
		list, err := h.ListKeys(t.Context(), h.tenant.ID, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range list {
			if key.ID == id {
				at = key.LastUsedAt
			}
		}
		return at
	}
	used, usedKey := h.key(t, h.spec())
	_, idleKey := h.key(t, h.spec())
	ahead, aheadKey := h.key(t, h.spec())
	refused, refusedKey := h.key(t, tenants.KeySpec{Kind: tenants.AdminKey, Name: "x", CIDRs: []string{"10.0.0.0/8"}})
	future := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	h.owner(t, `UPDATE keys SET last_used_at = $2 WHERE id = $1`, aheadKey.ID, future)

	before := time.Now().Add(-time.Millisecond)
	k := run(t, h.keys(t, tenants.KeysConfig{FlushEvery: 20 * time.Millisecond}))
	mustAuth(t, k, used)
	mustAuth(t, k, ahead)
	_, _ = auth(t, k, refused)
	eventually(t, 5*time.Second, "the use shows", func() bool { return lastUse(usedKey.ID).After(before) })
	if at := lastUse(idleKey.ID); !at.IsZero() {
		t.Errorf("an unused key was used at %s", at)
	}
	if at := lastUse(refusedKey.ID); !at.IsZero() {
		t.Errorf("a refused use counts at %s", at)
	}
	if at := lastUse(aheadKey.ID); !at.Equal(future) {
		t.Errorf("another replica's later use was moved back to %s", at)
	}

	// What is not yet written is written at the end.
	late, lateKey := h.key(t, h.spec())
	ctx, cancel := context.WithCancel(t.Context())
	slow := h.keys(t, tenants.KeysConfig{FlushEvery: time.Hour})
	done := make(chan error)
	go func() { done <- slow.Run(ctx) }()
	mustAuth(t, slow, late)
	if at := lastUse(lateKey.ID); !at.IsZero() {
		t.Fatalf("written at once, at %s", at)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if at := lastUse(lateKey.ID); !at.After(before) {
		t.Errorf("the last use before the end is lost: %s", at)
	}
}

func TestTheUseOfAKeyIsNoChangeOfIt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var c counter
	k := run(t, tenants.NewKeys(testLog(t), h.workerPool(t, nil, &c), h.peppers, tenants.KeysConfig{TTL: time.Hour}, time.Now))
	secret, key := h.key(t, h.spec())
	mustAuth(t, k, secret)
	h.owner(t, `SELECT weir_touch_keys($1, $2, $3)`, []tenants.ID{h.tenant.ID}, []tenants.KeyID{key.ID}, []time.Time{time.Now()})
	// The announcement after it has come, so its own, if there were one, has too.
	other, otherKey := h.key(t, h.spec())
	mustAuth(t, k, other)
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, otherKey.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "the other key is refused", func() bool {
		_, err := auth(t, k, other)
		return errors.Is(err, tenants.ErrRevoked)
	})
	before := c.total.Load()
	mustAuth(t, k, secret)
	if c.total.Load() != before {
		t.Error("the key was looked up again")
	}
}

func TestAuthenticateUnderLoadAgreesWithPostgres(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	k := run(t, h.keys(t, tenants.KeysConfig{CacheSize: 5, LookupTimeout: 10 * time.Second})) // smaller than what is in use
	secrets := make(map[string]tenants.KeyID)
	for i := range 12 {
		spec := h.spec()
		spec.Name = fmt.Sprintf("key %d", i)
		secret, key := h.key(t, spec)
		secrets[secret] = key.ID
	}
	var wg sync.WaitGroup
	for secret, id := range secrets {
		wg.Go(func() {
			for range 50 {
				p, err := auth(t, k, secret)
				if err != nil || p.Key != id {
					t.Errorf("Authenticate = %v, %v; want key %s", p, err, id)
					return
				}
				_, release := k.Guard(t.Context(), p)
				release()
			}
			if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, id); err != nil {
				t.Error(err)
			}
			eventually(t, 5*time.Second, "it is refused", func() bool {
				_, err := auth(t, k, secret)
				return errors.Is(err, tenants.ErrRevoked)
			})
		})
	}
	wg.Wait()
}

func BenchmarkAuthenticateHit(b *testing.B) {
	h := newHouse(b)
	secret, _ := h.key(b, h.spec())
	k := h.keys(b, tenants.KeysConfig{TTL: time.Hour})
	client := netip.MustParseAddr("192.0.2.1")
	mustAuth(b, k, secret)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.Authenticate(b.Context(), secret, client); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGuard(b *testing.B) {
	h := newHouse(b)
	secret, _ := h.key(b, h.spec())
	k := h.keys(b, tenants.KeysConfig{TTL: time.Hour})
	p := mustAuth(b, k, secret)
	b.ReportAllocs()
	for b.Loop() {
		_, release := k.Guard(b.Context(), p)
		release()
	}
}
