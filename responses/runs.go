package responses

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/tidwall/sjson"

	"weir/tenants"
)

// RunID names the run of a background response.
type RunID struct {
	Tenant   tenants.ID
	Response string
}

// Ordered is a background response that was asked for.
type Ordered struct {
	Record   *Record
	Request  []byte // as it was sent
	ClientID string // what the caller calls it

	// Also is done in the same transaction; nil is nothing.
	Also func(ctx context.Context, tx pgx.Tx) error
}

// Claimed is a run in the hands of its runner.
type Claimed struct {
	RunID

	Project   tenants.ProjectID
	Key       tenants.KeyID
	Request   []byte
	ClientID  string
	Lost      int  // runners that vanished before
	Shown     bool // output of it was shown to somebody
	Status    string
	Object    []byte
	CreatedAt time.Time
}

// Owner is whose response it is.
func (c *Claimed) Owner() Owner { return Owner{Tenant: c.Tenant, Project: c.Project} }

// ErrSynchronous means that a response was not made in the background.
var ErrSynchronous = errors.New("responses: not a background response")

// ErrTooManyRuns means that a tenant has as many background responses on their
// way as one may have.
var ErrTooManyRuns = errors.New("responses: too many background responses")

// maxRuns is how many background responses a tenant may have on their way.
const maxRuns = 1000

// Runs is where background runs are kept. What a runner does is done as the
// worker, and what a caller does as the application.
type Runs struct {
	worker *pgxpool.Pool
	vault  *tenants.Vault
	store  *Postgres
}

// NewRuns makes one beside the store of responses.
func NewRuns(worker *pgxpool.Pool, store *Postgres) *Runs {
	return &Runs{worker: worker, vault: store.vault, store: store}
}

const aboutRequest = "run|"

// Order stores a response as queued, its run, the job that enqueue adds, and what
// else belongs to it, in one transaction. The error may be ErrTooManyRuns.
func (r *Runs) Order(ctx context.Context, o *Ordered, enqueue func(context.Context, pgx.Tx, RunID) error) error {
	rec := o.Record
	keys, err := r.vault.Keys(ctx, rec.Owner.Tenant)
	if err != nil {
		return err
	}
	keep, err := r.store.Save(ctx, rec)
	if err != nil {
		return err
	}
	request := keys.Seal(o.Request, aboutRequest+rec.ID)
	return pgx.BeginFunc(ctx, r.worker, func(tx pgx.Tx) error {
		var b pgx.Batch
		keep(&b)
		var room bool
		b.Queue(`SELECT weir_queue_run($1, $2, $3, $4, $5, $6, $7)`,
			rec.Owner.Tenant, rec.ID, rec.Owner.Project, rec.Key, request, o.ClientID, maxRuns).
			QueryRow(func(row pgx.Row) error { return row.Scan(&room) })
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("order run of %s: %w", rec.ID, err)
		}
		if !room {
			return ErrTooManyRuns
		}
		if o.Also != nil {
			if err := o.Also(ctx, tx); err != nil {
				return fmt.Errorf("order run of %s: %w", rec.ID, err)
			}
		}
		return enqueue(ctx, tx, RunID{rec.Owner.Tenant, rec.ID})
	})
}

// Claim gives the runner the first of the tenant's runs that is due and that
// nobody holds, in the order in which they were asked for. It returns nil where
// none waits; the error is an *Again where one will be due.
func (r *Runs) Claim(ctx context.Context, t tenants.ID, runner string) (*Claimed, error) {
	keys, err := r.vault.Keys(ctx, t)
	if err != nil {
		return nil, err
	}
	c := &Claimed{Tenant: t}
	var request, object []byte
	err = r.worker.QueryRow(ctx, `
		SELECT response_id, project_id, key_id, request, client_id, lost, shown, status, object, created_at
		  FROM weir_take_run($1, $2)`, t, runner).
		Scan(&c.Response, &c.Project, &c.Key, &request, &c.ClientID, &c.Lost, &c.Shown, &c.Status, &object, &c.CreatedAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, r.nextIn(ctx, t)
	case err != nil:
		return nil, fmt.Errorf("claim run of %s: %w", t, err)
	}
	if c.Request, err = keys.Open(request, aboutRequest+c.Response); err != nil {
		return nil, fmt.Errorf("request of %s: %w", c.Response, err)
	}
	if c.Object, err = keys.Open(object, aboutObject+c.Response); err != nil {
		return nil, fmt.Errorf("response %s: %w", c.Response, err)
	}
	return c, nil
}

// nextIn is an *Again until the tenant's first waiting run is due; nil where none
// waits.
func (r *Runs) nextIn(ctx context.Context, t tenants.ID) error {
	var in *time.Duration
	if err := r.worker.QueryRow(ctx, `SELECT weir_next_run_in($1)`, t).Scan(&in); err != nil {
		return fmt.Errorf("next run of %s: %w", t, err)
	}
	if in == nil {
		return nil
	}
	return &Again{After: max(*in, time.Second)}
}

// Defer says that the tenant's runs wait because others of it are made, and not
// because their jobs were lost.
func (r *Runs) Defer(ctx context.Context, t tenants.ID) error {
	if _, err := r.worker.Exec(ctx, `SELECT weir_defer_runs($1)`, t); err != nil {
		return fmt.Errorf("defer runs of %s: %w", t, err)
	}
	return nil
}

// Hold says that the runner lives, and that output was shown if it was. False
// means that the run is over or in other hands.
func (r *Runs) Hold(ctx context.Context, id RunID, runner string, shown bool) (bool, error) {
	return r.ask(ctx, id, `SELECT weir_hold_run($1, $2, $3, $4)`, runner, shown)
}

// Started shows the response as in progress.
func (r *Runs) Started(ctx context.Context, id RunID, runner string, object []byte) (bool, error) {
	keys, err := r.vault.Keys(ctx, id.Tenant)
	if err != nil {
		return false, err
	}
	return r.ask(ctx, id, `SELECT weir_begin_run($1, $2, $3, $4)`, runner, keys.Seal(object, aboutObject+id.Response))
}

// Release gives a run back for another try after a while. Lost says that the
// runner could not finish what it had begun.
func (r *Runs) Release(ctx context.Context, id RunID, runner string, after time.Duration, lost bool) (bool, error) {
	return r.ask(ctx, id, `SELECT weir_release_run($1, $2, $3, $4, $5)`, runner, after, lost)
}

// Requeue gives a run back of which nobody may see any more what was made: the
// response is queued again, as the object says.
func (r *Runs) Requeue(ctx context.Context, id RunID, runner string, after time.Duration, object []byte) (bool, error) {
	keys, err := r.vault.Keys(ctx, id.Tenant)
	if err != nil {
		return false, err
	}
	return r.ask(ctx, id, `SELECT weir_requeue_run($1, $2, $3, $4, $5)`, runner, after, keys.Seal(object, aboutObject+id.Response))
}

func (r *Runs) ask(ctx context.Context, id RunID, query string, args ...any) (ok bool, err error) {
	err = r.worker.QueryRow(ctx, query, append([]any{id.Tenant, id.Response}, args...)...).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("run of %s: %w", id.Response, err)
	}
	return ok, nil
}

// End stores how a response ended, unless it has ended.
func (r *Runs) End(ctx context.Context, rec *Record) error {
	keep, err := r.store.Save(ctx, rec)
	if err != nil {
		return err
	}
	var b pgx.Batch
	keep(&b)
	if err := r.worker.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("end %s: %w", rec.ID, err)
	}
	return nil
}

// Reclaim takes runs from runners that were silent for so long, and finds those
// whose job is overdue; enqueue makes new jobs. It returns how many it found.
func (r *Runs) Reclaim(ctx context.Context, silence, overdue time.Duration, enqueue func(context.Context, pgx.Tx, RunID) error) (int, error) {
	const most = 500
	n := 0
	err := pgx.BeginFunc(ctx, r.worker, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT tenant_id, response_id FROM weir_reclaim_runs($1, $2, $3)`, silence, overdue, most)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RunID])
		if err != nil {
			return err
		}
		for _, id := range found {
			if err := enqueue(ctx, tx, id); err != nil {
				return err
			}
		}
		n = len(found)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("reclaim runs: %w", err)
	}
	return n, nil
}

// Sweep removes responses and stored chat completions that have expired or were
// deleted, in batches, until none are left for now.
func Sweep(ctx context.Context, worker *pgxpool.Pool, batch int) error {
	for {
		var swept int
		if err := worker.QueryRow(ctx, `SELECT weir_sweep_responses($1)`, batch).Scan(&swept); err != nil {
			return fmt.Errorf("sweep responses: %w", err)
		}
		if swept == 0 {
			return nil
		}
	}
}

// State is how a background response stands.
type State struct {
	Status     string
	Background bool
	Streamed   bool
	CreatedAt  time.Time
	Object     []byte
}

const readState = `
	SELECT status, background, streamed, created_at, object
	  FROM responses
	 WHERE tenant_id = $1 AND id = $2 AND project_id = $3 AND ` + live

func scanState(row pgx.Row, keys *tenants.DataKeys, id string) (*State, error) {
	s := &State{}
	var box []byte
	err := row.Scan(&s.Status, &s.Background, &s.Streamed, &s.CreatedAt, &box)
	if err != nil {
		return nil, err
	}
	s.Object, err = keys.Open(box, aboutObject+id)
	return s, err
}

// State looks a response up; ErrNotFound where there is none.
func (r *Runs) State(ctx context.Context, o Owner, id string) (s *State, err error) {
	err = r.store.ask(ctx, o, "response "+id, readState, []any{o.Tenant, id, o.Project},
		func(row pgx.Row, keys *tenants.DataKeys) error {
			s, err = scanState(row, keys, id)
			return err
		})
	return s, err
}

// Cancel ends a background response that has no end yet. It returns the object
// as it is then; a second call changes nothing. Errors: ErrNotFound,
// ErrSynchronous.
func (r *Runs) Cancel(ctx context.Context, o Owner, id string) ([]byte, error) {
	var object []byte
	err := r.store.within(ctx, o, "cancel "+id, func(tx pgx.Tx, keys *tenants.DataKeys) error {
		s, err := scanState(tx.QueryRow(ctx, readState+` FOR UPDATE`, o.Tenant, id, o.Project), keys, id)
		if err != nil {
			return err
		}
		object = s.Object
		switch {
		case !s.Background:
			return ErrSynchronous
		case Terminal(s.Status):
			return nil
		}
		if object, err = sjson.SetBytes(s.Object, "status", Cancelled); err != nil {
			return err
		}
		var b pgx.Batch
		b.Queue(`
			UPDATE responses SET status = 'cancelled', object = $3
			 WHERE tenant_id = $1 AND id = $2`, o.Tenant, id, keys.Seal(object, aboutObject+id))
		b.Queue(`DELETE FROM response_runs WHERE tenant_id = $1 AND response_id = $2`, o.Tenant, id)
		b.Queue(`SELECT pg_notify('weir_runs', $1)`, id)
		return tx.SendBatch(ctx, &b).Close()
	})
	return object, err
}
