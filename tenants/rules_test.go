package tenants

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAllows(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		kind   Kind
		scopes []string
		scope  string
		want   bool
	}{
		{"an sk without a list may do all that its kind may", ProjectKey, nil, ScopeChat, true},
		{"an sa without a list may do all that its kind may", ServiceKey, nil, ScopeEmbeddings, true},
		{"an sk never administers", ProjectKey, nil, ScopeKeysWrite, false},
		{"an sk never administers, whatever its row says", ProjectKey, []string{ScopeKeysWrite}, ScopeKeysWrite, false},
		{"an adm never runs inference", AdminKey, nil, ScopeChat, false},
		{"an adm never runs inference, whatever its row says", AdminKey, []string{ScopeChat}, ScopeChat, false},
		{"an adm without a list administers", AdminKey, nil, ScopeKeysWrite, true},
		{"a list binds", ProjectKey, []string{ScopeModelsRead}, ScopeChat, false},
		{"a list allows what it names", ProjectKey, []string{ScopeModelsRead, ScopeChat}, ScopeChat, true},
		{"usage is for both", AdminKey, []string{ScopeUsageRead}, ScopeUsageRead, true},
		{"an unknown scope is nobody's", ProjectKey, nil, "inference:*", false},
		{"no scope is nobody's", ProjectKey, nil, "", false},
		{"an unknown kind may do nothing", Kind("root"), nil, ScopeChat, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := &Principal{Kind: tt.kind, Scopes: tt.scopes}
			if got := p.Allows(tt.scope); got != tt.want {
				t.Errorf("Allows(%q) = %v", tt.scope, got)
			}
		})
	}
}

func TestPrincipalChoosesModelAndBand(t *testing.T) {
	t.Parallel()
	p := &Principal{Models: []string{"a/b"}, Plan: &Plan{Bands: map[Tier]string{TierDefault: "standard", TierFlex: "low"}}}
	if !p.MayUse("a/b") || p.MayUse("a") || !(&Principal{}).MayUse("anything") {
		t.Error("the model list does not bind as it should")
	}
	for asked, want := range map[Tier]string{TierFlex: "low", TierDefault: "standard", TierPriority: "standard", "": "standard", "made up": "standard"} {
		band, served := p.Band(asked)
		if band != want || (served != asked) != (asked != TierFlex && asked != TierDefault) {
			t.Errorf("Band(%q) = %q served as %q, want %q", asked, band, served, want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	v4, v6 := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")
	tests := []struct {
		name   string
		found  found
		expiry time.Time
		client string
		want   error
	}{
		{name: "a plain key is good from everywhere", client: "198.51.100.1"},
		{name: "a plain key is good from an unknown address"},
		{name: "inside the list", found: found{cidrs: []netip.Prefix{v4}}, client: "192.0.2.9"},
		{name: "outside the list", found: found{cidrs: []netip.Prefix{v4}}, client: "192.0.3.9", want: ErrAddress},
		{name: "the second entry counts", found: found{cidrs: []netip.Prefix{v4, v6}}, client: "2001:db8::1"},
		{name: "IPv4 that came over an IPv6 socket", found: found{cidrs: []netip.Prefix{v4}}, client: "::ffff:192.0.2.9"},
		{name: "an address with a zone", found: found{cidrs: []netip.Prefix{v6}}, client: "2001:db8::1%eth0"},
		{name: "an unknown address is on no list", found: found{cidrs: []netip.Prefix{v4, v6}}, want: ErrAddress},
		{name: "the last moment before expiry", expiry: now.Add(1)},
		{name: "the moment of expiry", expiry: now, want: ErrExpired},
		{name: "revoked", found: found{revoked: true}, want: ErrRevoked},
		{name: "suspended", found: found{suspended: true}, want: ErrSuspended},
		{name: "what is wrong with the key comes before the tenant", found: found{revoked: true, suspended: true}, want: ErrRevoked},
		{name: "the key comes before the address", found: found{cidrs: []netip.Prefix{v4}}, expiry: now, client: "198.51.100.1", want: ErrExpired},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.found.principal = &Principal{ExpiresAt: tt.expiry}
			client, _ := netip.ParseAddr(tt.client)
			if got := tt.found.judge(client, now); !errors.Is(got, tt.want) {
				t.Errorf("judge = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestLimitsFallBackOneByOne(t *testing.T) {
	t.Parallel()
	got := Limits{RequestsPerMinute: 5}.Or(Limits{RequestsPerMinute: 60, TokensPerMinute: 1000, Concurrency: 4})
	if diff := cmp.Diff(Limits{RequestsPerMinute: 5, TokensPerMinute: 1000, Concurrency: 4}, got); diff != "" {
		t.Error(diff)
	}
}

func TestKeySpecCheck(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	good := KeySpec{Kind: ProjectKey, Project: "prj_1", Name: "build server"}
	admin := KeySpec{Kind: AdminKey, Name: "console"}
	tests := []struct {
		name  string
		from  KeySpec
		edit  func(*KeySpec)
		field string // "" is good
	}{
		{"a project key", good, func(*KeySpec) {}, ""},
		{"an administration key", admin, func(*KeySpec) {}, ""},
		{"all scopes of the kind", good, func(s *KeySpec) { s.Scopes = ProjectKey.Scopes() }, ""},
		{"all administration scopes", admin, func(s *KeySpec) { s.Scopes = AdminKey.Scopes() }, ""},
		{"a name in any script", good, func(s *KeySpec) { s.Name = "サーバー №1 — ключ" }, ""},
		{"no kind", good, func(s *KeySpec) { s.Kind = "" }, "kind"},
		{"a made-up kind", good, func(s *KeySpec) { s.Kind = "root" }, "kind"},
		{"an inference key without a project", good, func(s *KeySpec) { s.Project = "" }, "project"},
		{"an administration key in a project", admin, func(s *KeySpec) { s.Project = "prj_1" }, "project"},
		{"an administration scope on an inference key", good, func(s *KeySpec) { s.Scopes = []string{ScopeChat, ScopeKeysWrite} }, "scopes"},
		{"an inference scope on an administration key", admin, func(s *KeySpec) { s.Scopes = []string{ScopeChat} }, "scopes"},
		{"a made-up scope", good, func(s *KeySpec) { s.Scopes = []string{"*"} }, "scopes"},
		{"no name", good, func(s *KeySpec) { s.Name = "" }, "name"},
		{"a blank name", good, func(s *KeySpec) { s.Name = " " }, "name"},
		{"a name with a line end", good, func(s *KeySpec) { s.Name = "a\nb" }, "name"},
		{"a name with a NUL", good, func(s *KeySpec) { s.Name = "a\x00b" }, "name"},
		{"a name that is no UTF-8", good, func(s *KeySpec) { s.Name = "a\xffb" }, "name"},
		{"a name that turns the writing round", good, func(s *KeySpec) { s.Name = "a\u202eb" }, "name"},
		{"a long name", good, func(s *KeySpec) { s.Name = strings.Repeat("ä", 101) }, "name"},
		{"a long name that still fits", good, func(s *KeySpec) { s.Name = strings.Repeat("ä", 100) }, ""},
		{"expiry now", good, func(s *KeySpec) { s.ExpiresAt = now }, "expires_at"},
		{"expiry later", good, func(s *KeySpec) { s.ExpiresAt = now.Add(time.Second) }, ""},
		{"a negative limit", good, func(s *KeySpec) { s.Limits.Concurrency = -1 }, "limits"},
		{"a model with a NUL", good, func(s *KeySpec) { s.Models = []string{"m\x00"} }, "models"},
		{"too many models", good, func(s *KeySpec) { s.Models = slices.Repeat([]string{"m"}, maxModels+1) }, "models"},
		{"models on an administration key", admin, func(s *KeySpec) { s.Models = []string{"m"} }, "models"},
		{"a network with host bits", good, func(s *KeySpec) { s.CIDRs = []string{"10.0.0.5/8"} }, "cidrs"},
		{"IPv4 written as IPv6", good, func(s *KeySpec) { s.CIDRs = []string{"::ffff:10.0.0.0/104"} }, "cidrs"},
		{"an IPv4 address written as IPv6", good, func(s *KeySpec) { s.CIDRs = []string{"::ffff:10.0.0.1"} }, "cidrs"},
		{"an address with a zone", good, func(s *KeySpec) { s.CIDRs = []string{"fe80::1%eth0"} }, "cidrs"},
		{"a host name", good, func(s *KeySpec) { s.CIDRs = []string{"example.com"} }, "cidrs"},
		{"too many networks", good, func(s *KeySpec) { s.CIDRs = slices.Repeat([]string{"10.0.0.0/8"}, maxCIDRs+1) }, "cidrs"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			spec := tt.from
			tt.edit(&spec)
			_, err := spec.check(now)
			var fieldErr *FieldError
			switch {
			case tt.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.field != "" && (!errors.As(err, &fieldErr) || fieldErr.Field != tt.field):
				t.Errorf("check = %v, want a complaint about %s", err, tt.field)
			}
		})
	}
}

func TestParseCIDRs(t *testing.T) {
	t.Parallel()
	got, err := parseCIDRs([]string{"2001:db8::/32", "192.0.2.7", "10.0.0.0/8", "192.0.2.7/32", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	want := "[10.0.0.0/8 192.0.2.7/32 ::1/128 2001:db8::/32]"
	if text := strings.TrimSpace(stringOf(got)); text != want {
		t.Errorf("parseCIDRs = %s, want %s", text, want)
	}
	if got, err := parseCIDRs(nil); err != nil || got == nil || len(got) != 0 {
		t.Errorf("parseCIDRs of nothing = %v, %v; want an empty list, which Postgres doesn't take for NULL", got, err)
	}
}

func stringOf(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return "[" + strings.Join(texts, " ") + "]"
}

func TestPlanValidate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		edit func(*Plan)
		want []string
	}{
		{"a whole plan", func(*Plan) {}, nil},
		{"no default band", func(p *Plan) { delete(p.Bands, TierDefault) }, []string{`the "default" tier needs a band`}},
		{"a made-up tier", func(p *Plan) { p.Bands["gold"] = "standard" }, []string{`no tier "gold"`}},
		{"a tier without a band", func(p *Plan) { p.Bands[TierFlex] = "" }, []string{`"flex" tier names no band`}},
		{"promises are bounded", func(p *Plan) { p.ReservedTokens, p.TTFTMillis = -1, 3_600_001 }, []string{"reserved_tokens: -1", "ttft_ms: 3600001"}},
		{"several at once", func(p *Plan) { p.Weight, p.Fairness, p.RetentionDays = 0, "user", -1 }, []string{"weight: 0", `fairness: "user"`, "retention_days: -1"}},
		{"negative limits", func(p *Plan) { p.Limits.Concurrency, p.KeyLimits.TokensPerMinute = -1, -1 }, []string{"limits: a limit", "key_limits: a limit"}},
		{"limits of projects and models are checked", func(p *Plan) {
			p.ProjectLimits.Concurrency, p.ModelLimits = -1, map[string]Limits{"a": {RequestsPerMinute: 1}, "b": {Concurrency: -1}}
		}, []string{"project_limits: a limit", "model_limits: b: a limit"}},
		{"a burst below the limits", func(p *Plan) { p.Burst = 0.5 }, []string{"burst: 0.5"}},
		{"a burst that is no number", func(p *Plan) { p.Burst = math.NaN() }, []string{"burst: NaN"}},
		{"no name", func(p *Plan) { p.Name = "" }, []string{"name: want"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan := Plan{Name: "p", Bands: map[Tier]string{TierDefault: "standard"}, Weight: 1, Fairness: FairnessTenant}
			tt.edit(&plan)
			err := plan.Validate()
			if (err == nil) != (len(tt.want) == 0) {
				t.Fatalf("Validate = %v", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Validate = %v, want it to say %q", err, want)
				}
			}
		})
	}
}
