package tenants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

// What secret scanners are given to look for.
var secretForm = regexp.MustCompile(`^weir_(sk|sa|adm)_[0-9A-Za-z]{49}$`)

func TestNewSecretParsesAsItsKindAndNeverRepeats(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	letters := make(map[rune]bool)
	for range 500 {
		for _, kind := range []Kind{ProjectKey, ServiceKey, AdminKey} {
			s := newSecret(kind)
			if !secretForm.MatchString(s.Reveal()) {
				t.Fatalf("a new secret has %d characters", len(s.Reveal()))
			}
			if got, err := ParseSecret(s.Reveal()); err != nil || got != kind {
				t.Fatalf("ParseSecret = %q, %v; want %q", got, err, kind)
			}
			if seen[s.Reveal()] {
				t.Fatal("a secret came twice")
			}
			seen[s.Reveal()] = true
			for _, c := range s.Reveal()[len(secretPrefix+kind)+1:] {
				letters[c] = true
			}
		}
	}
	if len(letters) != len(base62) {
		t.Errorf("secrets use %d characters, want %d", len(letters), len(base62))
	}
}

func TestParseSecretRefuses(t *testing.T) {
	t.Parallel()
	good := newSecret(ProjectKey).Reveal()
	withCheck := func(payload string) string {
		check := encodeCheck(payload)
		return payload + string(check[:])
	}
	random := strings.Repeat("a", randomLen)
	tests := []struct {
		name, secret string
	}{
		{"nothing", ""},
		{"another vendor's key", "sk-proj-abcdefghijklmnopqrstuvwxyz"},
		{"the prefix alone", "weir_"},
		{"a kind alone", "weir_sk_"},
		{"an unknown kind with a right check", withCheck("weir_xx_" + random)},
		{"no kind with a right check", withCheck("weir__" + random)},
		{"a short body with a right check", withCheck("weir_sk_" + random[1:])},
		{"a long body with a right check", withCheck("weir_sk_" + random + "a")},
		{"a character outside base62 with a right check", withCheck("weir_sk_" + random[1:] + "-")},
		{"an underscore in the body with a right check", withCheck("weir_sk_" + random[1:] + "_")},
		{"a wide character with a right check", withCheck("weir_sk_" + random[2:] + "é")},
		{"upper case", strings.ToUpper(good)},
		{"a space before", " " + good},
		{"a line end after", good + "\n"},
		{"a scheme before", "Bearer " + good},
		{"a kind that was changed", strings.Replace(good, "_sk_", "_sa_", 1)},
		{"one character less", good[:len(good)-1]},
		{"a megabyte", "weir_sk_" + strings.Repeat("a", 1<<20)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := ParseSecret(tt.secret); !errors.Is(err, ErrMalformedKey) || !errors.Is(err, ErrBadKey) {
				t.Errorf("ParseSecret = %v, want ErrMalformedKey", err)
			}
		})
	}
}

func TestParseSecretNoticesEverySingleTypingError(t *testing.T) {
	t.Parallel()
	good := newSecret(ServiceKey).Reveal()
	for i := range len(good) {
		for _, c := range []byte(base62) {
			if c == good[i] {
				continue
			}
			if _, err := ParseSecret(good[:i] + string(c) + good[i+1:]); err == nil {
				t.Fatalf("character %d may be %q as well", i, c)
			}
		}
	}
	body := good[len("weir_sa_"):]
	for i := range len(body) - 1 {
		if body[i] == body[i+1] {
			continue
		}
		swapped := "weir_sa_" + body[:i] + string(body[i+1]) + string(body[i]) + body[i+2:]
		if _, err := ParseSecret(swapped); err == nil {
			t.Fatalf("characters %d and %d may change places", i, i+1)
		}
	}
}

func TestCheckIsTheCRC32OfEverythingBefore(t *testing.T) {
	t.Parallel()
	for range 20 {
		secret := newSecret(AdminKey).Reveal()
		payload, check := secret[:len(secret)-checkLen], secret[len(secret)-checkLen:]
		var sum uint64
		for _, c := range check {
			sum = sum*62 + uint64(strings.IndexRune(base62, c))
		}
		if want := crc32.ChecksumIEEE([]byte(payload)); sum != uint64(want) {
			t.Fatalf("the check says %d, want %d", sum, want)
		}
	}
}

func TestSecretHidesItself(t *testing.T) {
	t.Parallel()
	secret := newSecret(ProjectKey)
	hidden := secret.Reveal()[len("weir_sk_"):]
	var out bytes.Buffer
	type holder struct{ Secret, secret Secret }
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10s", "% x"} {
		fmt.Fprintf(&out, verb+"\n", secret)
		fmt.Fprintf(&out, verb+"\n", holder{secret, secret})
		fmt.Fprintf(&out, verb+"\n", []Secret{secret})
		fmt.Fprintf(&out, verb+"\n", map[string]Secret{"k": secret})
	}
	fmt.Fprint(&out, secret, errors.New("no"), fmt.Errorf("create: %v", secret))
	for _, h := range []slog.Handler{
		slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
		slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
	} {
		slog.New(h).Debug("made", "secret", secret, "in", holder{secret, secret}, "list", []Secret{secret})
	}
	if err := json.NewEncoder(&out).Encode(map[Secret][]any{secret: {secret, holder{secret, secret}}}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{hidden, fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden), fmt.Sprintf("% x", hidden)} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret shows in:\n%s", strings.ReplaceAll(out.String(), form, "<HERE>"))
		}
	}
}

func TestDisplayShowsTooLittleToGuess(t *testing.T) {
	t.Parallel()
	secret := newSecret(ProjectKey)
	start, end := secret.display()
	if !strings.HasPrefix(secret.Reveal(), start) || !strings.HasSuffix(secret.Reveal(), end) {
		t.Errorf("display = %q, %q of another secret", start, end)
	}
	if shown := len(start) - len("weir_sk_") + len(end); shown > 8 {
		t.Errorf("%d characters of the secret are shown, want at most 8", shown)
	}
}

func FuzzParseSecret(f *testing.F) {
	f.Add(newSecret(ProjectKey).Reveal())
	f.Add(newSecret(AdminKey).Reveal())
	f.Add("weir_sk_")
	f.Add("weir_adm_\x00\xff")
	f.Fuzz(func(t *testing.T, s string) {
		kind, err := ParseSecret(s)
		if err != nil {
			if kind != "" || !errors.Is(err, ErrBadKey) {
				t.Fatalf("ParseSecret = %q, %v", kind, err)
			}
			return
		}
		if !secretForm.MatchString(s) || !strings.HasPrefix(s, "weir_"+string(kind)+"_") {
			t.Fatalf("accepted %q as %q", s, kind)
		}
		if check := encodeCheck(s[:len(s)-checkLen]); !strings.HasSuffix(s, string(check[:])) {
			t.Fatalf("accepted %q with a wrong check", s)
		}
	})
}
