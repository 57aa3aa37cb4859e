package tenants

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
)

// The form of a secret: weir_<kind>_<43 random><6 check>, all base62. 43
// characters carry 256 bits. The check is a CRC-32 of everything before it, so
// that typing errors and noise are refused without a look-up, and secret
// scanners can tell a key from a look-alike. The underscores let a double click
// select the whole key.
const (
	secretPrefix = "weir_"
	randomLen    = 43
	checkLen     = 6
	base62       = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// Secret is a key as its owner holds it. It exists only between its creation
// and the one answer that shows it; printed, logged or encoded it hides itself.
type Secret struct {
	text *string // a pointer: package fmt reads unexported fields, but stops there
}

// Reveal returns the text of the key.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Format hides the secret from every verb of package fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.redacted())) }

// LogValue hides the secret from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.redacted()) }

// MarshalJSON hides the secret from documents.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.redacted()) }

// MarshalText hides the secret from every other encoder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.redacted()), nil }

func (s Secret) redacted() string {
	if s.text == nil {
		return ""
	}
	return "[redacted key]"
}

// display returns what may be shown for ever: enough to tell keys apart.
func (s Secret) display() (start, end string) {
	text := s.Reveal()
	return text[:12], text[len(text)-4:]
}

// newSecret makes a key of the kind.
func newSecret(kind Kind) Secret {
	var b strings.Builder
	b.WriteString(secretPrefix)
	b.WriteString(string(kind))
	b.WriteByte('_')
	// 248 is the greatest multiple of 62 in a byte: what lies above would make
	// the first characters likelier.
	for n := 0; n < randomLen; {
		var random [randomLen]byte
		_, _ = rand.Read(random[:]) // never fails
		for _, c := range random {
			if c < 248 && n < randomLen {
				b.WriteByte(base62[c%62])
				n++
			}
		}
	}
	check := encodeCheck(b.String())
	b.Write(check[:])
	text := b.String()
	return Secret{text: &text}
}

// ParseSecret checks the form and the check characters of a presented key and
// returns its kind. The error is ErrMalformedKey. Whether there is such a key
// is another question.
func ParseSecret(s string) (Kind, error) {
	rest, ok := strings.CutPrefix(s, secretPrefix)
	if !ok {
		return "", ErrMalformedKey
	}
	kind, body, _ := strings.Cut(rest, "_")
	if !Kind(kind).known() || len(body) != randomLen+checkLen {
		return "", ErrMalformedKey
	}
	for i := range len(body) {
		if !isBase62(body[i]) {
			return "", ErrMalformedKey
		}
	}
	payload := s[:len(s)-checkLen]
	if check := encodeCheck(payload); string(check[:]) != s[len(payload):] {
		return "", ErrMalformedKey
	}
	return Kind(kind), nil
}

func encodeCheck(payload string) [checkLen]byte {
	// As crc32.ChecksumIEEE, which wants a copy of the text in bytes.
	sum := ^uint32(0)
	for i := range len(payload) {
		sum = crc32.IEEETable[sum&0xff^uint32(payload[i])] ^ sum>>8
	}
	sum = ^sum
	var check [checkLen]byte
	for i := checkLen - 1; i >= 0; i-- {
		check[i] = base62[sum%62]
		sum /= 62
	}
	return check
}

func isBase62(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

func (k Kind) known() bool {
	return k == ProjectKey || k == ServiceKey || k == AdminKey
}
