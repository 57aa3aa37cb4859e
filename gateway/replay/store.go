// Package replay keeps answers for a while, so that a request that comes twice
// under one key of its caller's is run once. Answers are content: they are sealed
// with their tenant's data key.
package replay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/tenants"
)

// Outcome is what is to become of a request that came with a key.
type Outcome string

// The outcomes.
const (
	Claimed Outcome = "claimed" // run it, then call Keep or Drop
	Running Outcome = "running" // another request with the key is under way, or may be
	Other   Outcome = "other"   // the key was used for a request that differs
	Done    Outcome = "done"    // there is an answer
	Bare    Outcome = "bare"    // there was one, which was not kept
	Lost    Outcome = "lost"    // there may have been one: its replica died after the request was settled
)

// Asked is a request that came with a key. The key is the caller's word, and
// holds within its project.
type Asked struct {
	Tenant  tenants.ID
	Project tenants.ProjectID
	Key     string
	Print   [sha256.Size]byte // of what was asked
	Request string            // req_..., ours
}

// hash is under what the answer is kept.
func (a *Asked) hash() []byte {
	sum := sha256.Sum256([]byte(string(a.Project) + "\x00" + a.Key))
	return sum[:]
}

// about binds a sealed answer to its place.
func (a *Asked) about(request string) string {
	return "kept_answers|" + hex.EncodeToString(a.hash()) + "|" + request
}

// Answer is what a request was answered with.
type Answer struct {
	Request string // of which it is
	Type    string // its media type
	Body    []byte
}

// Config sets a Store. Zero fields take the default that is named with them.
type Config struct {
	Replica string // this replica's id
	// Dead is the time after which a replica that stopped or is silent has nothing
	// left to settle, though nobody has said so (10 min).
	Dead   time.Duration
	Steady func() bool   // whether this replica can tell who is gone (never)
	Life   time.Duration // of an answer (24 h)
	Retry  time.Duration // between two tries to end claims that Postgres didn't hear of (5 s)
}

// Store keeps answers in Postgres. It is safe for concurrent use.
type Store struct {
	log    *slog.Logger
	worker *pgxpool.Pool
	vault  *tenants.Vault
	cfg    Config

	mu   sync.Mutex
	owed []owed // ends of claims; bounded by maxOwed
}

// owed is the end of a claim that Postgres was away for.
type owed struct {
	asked  Asked
	failed bool
}

// maxOwed bounds the ends that are remembered. Claims above it stay until they
// expire.
const maxOwed = 1024

// New makes a Store on the worker's pool.
func New(log *slog.Logger, worker *pgxpool.Pool, vault *tenants.Vault, cfg Config) *Store {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&cfg.Dead, 10*time.Minute)
	set(&cfg.Life, 24*time.Hour)
	set(&cfg.Retry, 5*time.Second)
	if cfg.Steady == nil {
		cfg.Steady = func() bool { return false }
	}
	return &Store{log: log, worker: worker, vault: vault, cfg: cfg}
}

// Claim says what is to become of a request. Of many at once one is claimed. The
// answer is there where it is Done; its Request, where there was an earlier one.
// One whose replica died is Running until what that left is settled, since it may
// be billed until then.
func (s *Store) Claim(ctx context.Context, a *Asked) (Outcome, Answer, error) {
	var outcome Outcome
	var found Answer
	err := s.worker.QueryRow(ctx, `
		SELECT outcome, request_id, content_type, body
		  FROM weir_claim_answer($1, $2, $3, $4, $5, $6, $7, $8)`,
		a.Tenant, a.hash(), a.Print[:], a.Request, s.cfg.Replica, s.cfg.Life, s.cfg.Dead, s.cfg.Steady()).
		Scan(&outcome, &found.Request, &found.Type, &found.Body)
	if err != nil {
		s.owe(owed{asked: *a, failed: true}) // Postgres may have heard of it
		return "", Answer{}, fmt.Errorf("claim answer: %w", err)
	}
	if outcome != Done {
		return outcome, found, nil
	}
	keys, err := s.vault.Keys(ctx, a.Tenant)
	if err == nil {
		found.Body, err = keys.Open(found.Body, a.about(found.Request))
	}
	if errors.Is(err, tenants.ErrErased) {
		return Bare, Answer{Request: found.Request}, nil
	}
	if err != nil {
		return "", Answer{}, fmt.Errorf("open kept answer: %w", err)
	}
	return Done, found, nil
}

// Keep ends a claim with its answer. A body that is nil is not kept, but that
// there was an answer is; the body may follow. What Postgres can't be told is told
// later, without the body.
func (s *Store) Keep(ctx context.Context, a *Asked, mediaType string, body []byte) error {
	var box []byte
	if body != nil {
		keys, err := s.vault.Keys(ctx, a.Tenant)
		if err != nil {
			s.owe(owed{asked: *a})
			return fmt.Errorf("seal answer: %w", err)
		}
		box = keys.Seal(body, a.about(a.Request))
	}
	_, err := s.worker.Exec(ctx, `SELECT weir_keep_answer($1, $2, $3, $4, $5)`, a.Tenant, a.hash(), a.Request, mediaType, box)
	if err != nil {
		s.owe(owed{asked: *a})
		return fmt.Errorf("keep answer: %w", err)
	}
	return nil
}

// KeepWith is Keep without a body, as part of a transaction of the worker's: what
// was asked for is on record with it, or neither is.
func (s *Store) KeepWith(ctx context.Context, tx pgx.Tx, a *Asked) error {
	if _, err := tx.Exec(ctx, `SELECT weir_keep_answer($1, $2, $3, '', NULL)`, a.Tenant, a.hash(), a.Request); err != nil {
		return fmt.Errorf("keep answer: %w", err)
	}
	return nil
}

// Drop ends a claim whose request failed: the next one with the key is run.
func (s *Store) Drop(ctx context.Context, a *Asked) error {
	_, err := s.worker.Exec(ctx, `SELECT weir_drop_answer($1, $2, $3)`, a.Tenant, a.hash(), a.Request)
	if err != nil {
		s.owe(owed{asked: *a, failed: true})
		return fmt.Errorf("drop claim: %w", err)
	}
	return nil
}

func (s *Store) owe(o owed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.owed) < maxOwed {
		s.owed = append(s.owed, o)
	}
}

// Run ends the claims that Postgres was away for, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.cfg.Retry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		s.mu.Lock()
		due := s.owed
		s.owed = nil
		s.mu.Unlock()
		for i := range due { // one that fails is owed again
			var err error
			if o := &due[i]; o.failed {
				err = s.Drop(ctx, &o.asked)
			} else {
				err = s.Keep(ctx, &o.asked, "", nil)
			}
			if err != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "requests with a key of their caller's look as if they ran still",
					slog.Int("count", len(due)), slog.Any("error", err))
				for _, left := range due[i+1:] {
					s.owe(left)
				}
				break
			}
		}
	}
}

// Expire removes at most so many answers that have expired, and the bodies of
// those of each tenant that go beyond so many bytes, the oldest first. It
// returns how many it removed.
func Expire(ctx context.Context, worker *pgxpool.Pool, most int, bytes int64) (removed int, err error) {
	if err := worker.QueryRow(ctx, `SELECT weir_expire_answers($1, $2)`, most, bytes).Scan(&removed); err != nil {
		return 0, fmt.Errorf("expire answers: %w", err)
	}
	return removed, nil
}
