package tenants_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"weir/tenants"
)

func masters(t *testing.T, versions ...int) (tenants.MasterKeys, string) {
	t.Helper()
	var parts []string
	for _, v := range versions {
		key := bytes.Repeat([]byte{byte(v)}, 32)
		parts = append(parts, fmt.Sprintf("%d:%s", v, base64.StdEncoding.EncodeToString(key)))
	}
	text := strings.Join(parts, ",")
	m, err := tenants.ParseMasterKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return m, text
}

func vault(t *testing.T, h *house, versions ...int) *tenants.Vault {
	t.Helper()
	m, _ := masters(t, versions...)
	v, err := tenants.NewVault(h.db.App, m)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func keysOf(t *testing.T, v *tenants.Vault, tenant tenants.ID) *tenants.DataKeys {
	t.Helper()
	d, err := v.Keys(t.Context(), tenant)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestContentOpensForItsTenantAndPurposeAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other, _, err := h.CreateTenant(t.Context(), actor, "other", "standard")
	if err != nil {
		t.Fatal(err)
	}
	v := vault(t, h, 1)
	mine, theirs := keysOf(t, v, h.tenant.ID), keysOf(t, v, other.ID)
	plain := []byte("what was said")
	box := mine.Seal(plain, "item 1")
	if bytes.Contains(box, plain) {
		t.Error("it is not sealed")
	}
	if got, err := mine.Open(box, "item 1"); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("opened %q, %v", got, err)
	}
	if _, err := mine.Open(box, "item 2"); err == nil {
		t.Error("opens as something else")
	}
	if _, err := theirs.Open(box, "item 1"); err == nil {
		t.Error("opens for another tenant")
	}
	box[len(box)-1] ^= 1
	if _, err := mine.Open(box, "item 1"); err == nil {
		t.Error("opens when damaged")
	}
	if _, err := mine.Open(nil, "item 1"); err == nil {
		t.Error("nothing opens")
	}
}

func TestReplicasThatComeTogetherShareOneDataKey(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var wg sync.WaitGroup
	boxes := make([][]byte, 8)
	for i := range boxes {
		v := vault(t, h, 1)
		wg.Go(func() {
			d, err := v.Keys(t.Context(), h.tenant.ID)
			if err != nil {
				t.Error(err)
				return
			}
			boxes[i] = d.Seal([]byte("x"), "a")
		})
	}
	wg.Wait()
	d := keysOf(t, vault(t, h, 1), h.tenant.ID)
	for i, box := range boxes {
		if _, err := d.Open(box, "a"); err != nil {
			t.Errorf("replica %d sealed under a key of its own: %v", i, err)
		}
	}
}

func TestMasterKeysRotate(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	box := keysOf(t, vault(t, h, 1), h.tenant.ID).Seal([]byte("x"), "a")
	if _, err := keysOf(t, vault(t, h, 2, 1), h.tenant.ID).Open(box, "a"); err != nil {
		t.Errorf("with the old one listed: %v", err)
	}
	if _, err := vault(t, h, 2).Keys(t.Context(), h.tenant.ID); err == nil || !strings.Contains(err.Error(), "version 1") {
		t.Errorf("without it: %v", err)
	}
}

func TestDestroyedKeysErase(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	v := vault(t, h, 1)
	box := keysOf(t, v, h.tenant.ID).Seal([]byte("x"), "a")
	if err := v.Destroy(t.Context(), h.tenant.ID); err != nil {
		t.Fatal(err)
	}
	d := keysOf(t, v, h.tenant.ID)
	if _, err := d.Open(box, "a"); !errors.Is(err, tenants.ErrErased) {
		t.Errorf("error %v, want ErrErased", err)
	}
	if _, err := d.Open(d.Seal([]byte("y"), "a"), "a"); err != nil {
		t.Errorf("a new key: %v", err)
	}
}

func TestMasterKeysAreNeverShown(t *testing.T) {
	t.Parallel()
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	encoded := base64.StdEncoding.EncodeToString(secret)
	m, err := tenants.ParseMasterKeys("1:" + encoded)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v %+v %#v", m, m, m); strings.Contains(got, encoded) || strings.Contains(got, fmt.Sprintf("%v", secret)) {
		t.Errorf("printed as %s", got)
	}
	for _, bad := range []string{"", "1", "1:", "0:" + encoded, "1:" + encoded + ",1:" + encoded, "1:" + encoded[:10], "x:" + encoded} {
		if _, err := tenants.ParseMasterKeys(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		} else if len(encoded) > 10 && strings.Contains(err.Error(), encoded[:10]) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}
