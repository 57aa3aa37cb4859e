package billing

import "fmt"

// CacheTiers says how much of a receipt's cached input lay below the
// accelerator's own memory, where the rest of it lay, in tokens. Prices don't
// depend on it.
type CacheTiers struct {
	Host    int64 `json:"host"`
	Storage int64 `json:"storage"`
}

// Device is how much of so many cached tokens lay in the accelerator's memory.
func (t CacheTiers) Device(cached int64) int64 { return cached - t.Host - t.Storage }

// validate reports parts that are more than the whole, as ErrUsage.
func (t *CacheTiers) validate(cached int64) error {
	if t == nil || t.Host >= 0 && t.Storage >= 0 && t.Storage <= cached && t.Host <= cached-t.Storage {
		return nil
	}
	return fmt.Errorf("%w: of %d cached tokens, %d in host memory and %d in storage", ErrUsage, cached, t.Host, t.Storage)
}

// columns are NULL where the engine didn't say.
func (t *CacheTiers) columns() (host, storage *int64) {
	if t == nil {
		return nil, nil
	}
	return &t.Host, &t.Storage
}

// tiersOf are those of the columns.
func tiersOf(host, storage *int64) *CacheTiers {
	if host == nil || storage == nil {
		return nil
	}
	return &CacheTiers{Host: *host, Storage: *storage}
}
