package tenants

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func pepperText(version int, fill byte) string {
	return fmt.Sprintf("%d:%s", version, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, minPepperBytes)))
}

func TestParsePeppers(t *testing.T) {
	t.Parallel()
	short := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, minPepperBytes-1))
	tests := []struct {
		name, text, wantErr string
		wantVersions        []int
	}{
		{name: "one pepper", text: pepperText(1, 1), wantVersions: []int{1}},
		{name: "the current one first", text: pepperText(7, 1) + "," + pepperText(3, 2), wantVersions: []int{7, 3}},
		{name: "spaces around the comma", text: pepperText(2, 1) + ", " + pepperText(1, 2), wantVersions: []int{2, 1}},
		{name: "nothing is refused", text: "", wantErr: "want <version>:<base64>"},
		{name: "no version is refused", text: short, wantErr: "want <version>:<base64>"},
		{name: "version 0 is refused", text: pepperText(0, 1), wantErr: "want <version>:<base64>"},
		{name: "a version twice is refused", text: pepperText(1, 1) + "," + pepperText(1, 2), wantErr: "listed twice"},
		{name: "a short pepper is refused", text: "1:" + short, wantErr: "31 bytes"},
		{name: "other text is refused", text: "1:not base64, really not", wantErr: "not base64"},
		{name: "a trailing comma is refused", text: pepperText(1, 1) + ",", wantErr: "pepper 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := ParsePeppers(tt.text)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tt.wantErr)
				}
				if strings.Contains(err.Error(), short) {
					t.Errorf("the error shows the pepper: %v", err)
				}
				if p.Validate() == nil {
					t.Error("what was refused is valid")
				}
				return
			}
			if err != nil || p.Validate() != nil {
				t.Fatalf("ParsePeppers: %v; Validate: %v", err, p.Validate())
			}
			var versions []int
			for _, pep := range p.list {
				versions = append(versions, pep.version)
			}
			if fmt.Sprint(versions) != fmt.Sprint(tt.wantVersions) {
				t.Errorf("versions %v, want %v", versions, tt.wantVersions)
			}
		})
	}
}

func TestPeppersMatchOnlyWhatWasHashedUnderTheSameVersion(t *testing.T) {
	t.Parallel()
	parse := func(text string) Peppers {
		p, err := ParsePeppers(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	old := parse(pepperText(1, 1))
	both := parse(pepperText(2, 2) + "," + pepperText(1, 1))
	hash, version := old.current("secret")
	if !both.matches("secret", hash, version) {
		t.Error("a key of the older pepper does not match during rotation")
	}
	if both.matches("secreT", hash, version) || both.matches("secret", hash, 2) || both.matches("secret", hash, 3) {
		t.Error("another secret or version matches")
	}
	if both.matches("secret", nil, version) || both.matches("secret", hash[:31], version) {
		t.Error("a part of the hash matches")
	}
	if parse(pepperText(2, 2)).matches("secret", hash, version) {
		t.Error("a key matches after its pepper was retired")
	}
	if newHash, v := both.current("secret"); v != 2 || bytes.Equal(newHash, hash) {
		t.Errorf("new keys take version %d", v)
	}
}

func TestPeppersHideThemselves(t *testing.T) {
	t.Parallel()
	text := pepperText(1, 'P')
	p, err := ParsePeppers(text)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb, p)
		fmt.Fprintf(&out, verb, &struct{ P, p Peppers }{p, p})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("loaded", "peppers", p, "in", []Peppers{p})
	raw := strings.Repeat("P", 8)
	for _, form := range []string{raw, fmt.Sprintf("%x", raw), "80 80 80", text[2:12]} {
		if strings.Contains(out.String(), form) {
			t.Errorf("a pepper shows as %q in %s", form, out.String())
		}
	}
}
