package responses

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"weir/tenants"
)

// Sealer hides the reasoning that callers carry for us from one turn to the
// next (reasoning.encrypted_content). A seal opens for its tenant and model
// alone. It is AES-256-GCM with a random nonce; the key is derived from the
// deployment's secret.
type Sealer struct{ aead cipher.AEAD }

// NewSealer derives the key from secret.
func NewSealer(secret []byte) (*Sealer, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "weir reasoning v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("cipher: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("cipher: %w", err)
	}
	return &Sealer{aead: aead}, nil
}

// Seal returns a text that nobody but Open can read.
func (s *Sealer) Seal(t tenants.ID, model, text string) string {
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(text)+s.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nonce, nonce, []byte(text), bound(t, model)))
}

// Open reads what Seal made; false where it was not made here, or not for this
// tenant and model.
func (s *Sealer) Open(t tenants.ID, model, sealed string) (string, bool) {
	b, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || len(b) < s.aead.NonceSize() {
		return "", false
	}
	n := s.aead.NonceSize()
	text, err := s.aead.Open(nil, b[:n], b[n:], bound(t, model))
	return string(text), err == nil
}

func bound(t tenants.ID, model string) []byte { return []byte(string(t) + "|" + model) }
