package tenants

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

const minPepperBytes = 32

// Peppers are the secrets under which keys are hashed. They live outside the
// database, so that a stolen one can't even be searched. New keys take the
// current pepper; keys made under an older one work while it is listed.
type Peppers struct {
	list []pepper // the current one first
}

type pepper struct {
	version int
	hash    func(secret string) []byte // package fmt, which reads unexported fields, can't look into it
}

// ParsePeppers reads "<version>:<base64>", the current pepper first, older
// ones after commas. Each has at least 32 bytes. Errors never show a pepper.
func ParsePeppers(text string) (Peppers, error) {
	var p Peppers
	for i, part := range strings.Split(text, ",") {
		number, encoded, ok := strings.Cut(strings.TrimSpace(part), ":")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version < 1 {
			return Peppers{}, fmt.Errorf("pepper %d: want <version>:<base64> with a version of 1 or more", i+1)
		}
		secret, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return Peppers{}, fmt.Errorf("pepper version %d: not base64", version)
		}
		if len(secret) < minPepperBytes {
			return Peppers{}, fmt.Errorf("pepper version %d: %d bytes, want at least %d", version, len(secret), minPepperBytes)
		}
		if _, twice := p.find(version); twice {
			return Peppers{}, fmt.Errorf("pepper version %d is listed twice", version)
		}
		p.list = append(p.list, pepper{version: version, hash: hasher(secret)})
	}
	return p, nil
}

// Validate refuses the zero value, under which every key would be unknown.
func (p Peppers) Validate() error {
	if len(p.list) == 0 {
		return errors.New("no pepper to hash keys with")
	}
	return nil
}

// Format hides the peppers from every verb of package fmt.
func (p Peppers) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[redacted peppers]")) }

// LogValue hides the peppers from logs.
func (p Peppers) LogValue() slog.Value { return slog.StringValue("[redacted peppers]") }

// current hashes a new key.
func (p Peppers) current(secret string) (hash []byte, version int) {
	return p.list[0].hash(secret), p.list[0].version
}

// all hashes a presented key under every pepper that it may have been made under.
func (p Peppers) all(secret string) [][]byte {
	hashes := make([][]byte, len(p.list))
	for i, pep := range p.list {
		hashes[i] = pep.hash(secret)
	}
	return hashes
}

// matches compares in constant time with what was stored.
func (p Peppers) matches(secret string, stored []byte, version int) bool {
	pep, ok := p.find(version)
	return ok && hmac.Equal(pep.hash(secret), stored)
}

func (p Peppers) find(version int) (pepper, bool) {
	for _, pep := range p.list {
		if pep.version == version {
			return pep, true
		}
	}
	return pepper{}, false
}

func hasher(key []byte) func(string) []byte {
	return func(secret string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(secret))
		return mac.Sum(nil)
	}
}
