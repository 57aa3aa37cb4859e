package tenants

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const masterKeyBytes = 32

// MasterKeys are the secrets under which tenants' data keys are wrapped. They
// live outside the database. New data keys take the first; those wrapped under
// an older one open while it is listed.
type MasterKeys struct {
	list []masterKey
}

type masterKey struct {
	version uint32
	aead    cipher.AEAD // an interface: package fmt prints no key
}

// ParseMasterKeys reads "<version>:<base64 of 32 bytes>", the current key
// first, older ones after commas. Errors never show a key.
func ParseMasterKeys(text string) (MasterKeys, error) {
	var m MasterKeys
	for i, part := range strings.Split(text, ",") {
		number, encoded, ok := strings.Cut(strings.TrimSpace(part), ":")
		version, err := strconv.ParseUint(number, 10, 31)
		if !ok || err != nil || version < 1 {
			return MasterKeys{}, fmt.Errorf("master key %d: want <version>:<base64> with a version of 1 or more", i+1)
		}
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(key) != masterKeyBytes {
			return MasterKeys{}, fmt.Errorf("master key version %d: want base64 of exactly %d bytes", version, masterKeyBytes)
		}
		if _, twice := m.find(uint32(version)); twice {
			return MasterKeys{}, fmt.Errorf("master key version %d is listed twice", version)
		}
		aead, err := newAEAD(key)
		if err != nil {
			return MasterKeys{}, fmt.Errorf("master key version %d: %w", version, err)
		}
		m.list = append(m.list, masterKey{version: uint32(version), aead: aead})
	}
	return m, nil
}

// Validate refuses the zero value, under which nothing could be sealed.
func (m MasterKeys) Validate() error {
	if len(m.list) == 0 {
		return errors.New("no master key to seal content under")
	}
	return nil
}

func (m MasterKeys) find(version uint32) (cipher.AEAD, bool) {
	for _, k := range m.list {
		if k.version == version {
			return k.aead, true
		}
	}
	return nil, false
}

// wrap seals a data key: the master key's version, then nonce and box.
func (m MasterKeys) wrap(dataKey []byte, tenant ID) []byte {
	k := m.list[0]
	return seal(k.aead, binary.BigEndian.AppendUint32(nil, k.version), dataKey, wrapped(tenant))
}

func (m MasterKeys) unwrap(box []byte, tenant ID) ([]byte, error) {
	if len(box) < 4 {
		return nil, errSealed
	}
	version := binary.BigEndian.Uint32(box)
	aead, ok := m.find(version)
	if !ok {
		return nil, fmt.Errorf("a data key is wrapped under master key version %d, which is not listed", version)
	}
	return unseal(aead, box[4:], wrapped(tenant))
}

func wrapped(tenant ID) []byte { return []byte("data key of " + string(tenant)) }

var errSealed = errors.New("sealed content is damaged, or was sealed for something else")

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal appends nonce and box to head. AES-GCM with random nonces is safe for
// some four billion boxes a key (NIST SP 800-38D, 8.3).
func seal(aead cipher.AEAD, head, plain, about []byte) []byte {
	n := len(head)
	out := make([]byte, n+aead.NonceSize(), n+aead.NonceSize()+len(plain)+aead.Overhead())
	copy(out, head)
	nonce := out[n:]
	_, _ = rand.Read(nonce) // never fails
	return aead.Seal(out, nonce, plain, about)
}

func unseal(aead cipher.AEAD, box, about []byte) ([]byte, error) {
	n := aead.NonceSize()
	if len(box) < n {
		return nil, errSealed
	}
	plain, err := aead.Open(nil, box[:n], box[n:], about)
	if err != nil {
		return nil, errSealed
	}
	return plain, nil
}
