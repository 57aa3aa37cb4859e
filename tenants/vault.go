package tenants

import (
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/maypok86/otter/v2"
)

// ErrErased means that a tenant's content was sealed under a data key that was
// destroyed.
var ErrErased = errors.New("tenants: the content was erased")

// Vault holds the tenants' data keys. It is safe for concurrent use.
type Vault struct {
	app     *pgxpool.Pool
	masters MasterKeys
	keys    *otter.Cache[ID, *DataKeys]
}

// keysLive is how long an opened data key is kept in memory: the time until
// every replica has forgotten one that was destroyed.
const (
	keysLive = 5 * time.Minute
	keysMost = 10_000
)

// NewVault makes a vault on the application's pool.
func NewVault(app *pgxpool.Pool, masters MasterKeys) (*Vault, error) {
	if err := masters.Validate(); err != nil {
		return nil, err
	}
	keys, err := otter.New(&otter.Options[ID, *DataKeys]{
		MaximumSize: keysMost, ExpiryCalculator: otter.ExpiryWriting[ID, *DataKeys](keysLive),
	})
	if err != nil {
		return nil, fmt.Errorf("cache of data keys: %w", err)
	}
	return &Vault{app: app, masters: masters, keys: keys}, nil
}

// DataKeys are one tenant's, opened.
type DataKeys struct {
	tenant  ID
	current uint32
	aeads   map[uint32]cipher.AEAD
}

// Keys opens a tenant's data keys; the first time it makes one.
func (v *Vault) Keys(ctx context.Context, tenant ID) (*DataKeys, error) {
	return v.keys.Get(ctx, tenant, otter.LoaderFunc[ID, *DataKeys](v.load))
}

// Destroy erases a tenant's content by destroying its data keys. Replicas that
// have them open forget them within five minutes. What is sealed afterwards is
// sealed under a new key.
func (v *Vault) Destroy(ctx context.Context, tenant ID) error {
	defer v.keys.Invalidate(tenant)
	return InTenant(ctx, v.app, tenant, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM data_keys WHERE tenant_id = $1`, tenant)
		return err
	})
}

func (v *Vault) load(ctx context.Context, tenant ID) (*DataKeys, error) {
	d := &DataKeys{tenant: tenant, aeads: map[uint32]cipher.AEAD{}}
	err := InTenant(ctx, v.app, tenant, func(tx pgx.Tx) error {
		found, err := v.read(ctx, tx, d)
		if err != nil || found {
			return err
		}
		var fresh [masterKeyBytes]byte
		_, _ = rand.Read(fresh[:]) // never fails
		// Versions are random, so that content of a destroyed key is never
		// taken for that of its successor. Who comes second takes the first's.
		_, err = tx.Exec(ctx, `
			INSERT INTO data_keys (tenant_id, version, wrapped)
			SELECT $1, 1 + floor(random() * 2000000000)::integer, $2
			 WHERE pg_advisory_xact_lock(hashtextextended('weir.data_keys.' || $1, 0)) IS NOT NULL
			   AND NOT EXISTS (SELECT FROM data_keys WHERE tenant_id = $1)`,
			tenant, v.masters.wrap(fresh[:], tenant))
		if err != nil {
			return err
		}
		_, err = v.read(ctx, tx, d)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("data keys of %s: %w", tenant, err)
	}
	return d, nil
}

// read opens the keys that there are.
func (v *Vault) read(ctx context.Context, tx pgx.Tx, d *DataKeys) (found bool, err error) {
	rows, err := tx.Query(ctx, `
		SELECT version, wrapped FROM data_keys
		 WHERE tenant_id = $1
		 ORDER BY created_at, version`, d.tenant)
	if err != nil {
		return false, err
	}
	var version int32
	var box []byte
	_, err = pgx.ForEachRow(rows, []any{&version, &box}, func() error {
		key, err := v.masters.unwrap(box, d.tenant)
		if err != nil {
			return err
		}
		aead, err := newAEAD(key)
		if err != nil {
			return err
		}
		d.current = uint32(version) //nolint:gosec // the column is positive
		d.aeads[d.current] = aead
		return nil
	})
	return len(d.aeads) > 0, err
}

// Seal returns plain sealed under the tenant's current key. about says what it
// is (a table and an id): it opens only as that.
func (d *DataKeys) Seal(plain []byte, about string) []byte {
	return seal(d.aeads[d.current], binary.BigEndian.AppendUint32(nil, d.current), plain, d.bind(about))
}

// Open reads what Seal made. The error is ErrErased where its key is gone.
func (d *DataKeys) Open(box []byte, about string) ([]byte, error) {
	if len(box) < 4 {
		return nil, errSealed
	}
	aead, ok := d.aeads[binary.BigEndian.Uint32(box)]
	if !ok {
		return nil, ErrErased
	}
	return unseal(aead, box[4:], d.bind(about))
}

func (d *DataKeys) bind(about string) []byte { return []byte(string(d.tenant) + "|" + about) }
