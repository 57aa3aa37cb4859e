package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Tenant is the organization that pays.
type Tenant struct {
	ID          ID
	Name        string
	Plan        string
	FairnessID  string
	CreatedAt   time.Time
	SuspendedAt time.Time // zero: not suspended
}

// Project is a tenant's subdivision. Inference keys live in one.
type Project struct {
	Tenant     ID
	ID         ProjectID
	Name       string
	FairnessID string
	CreatedAt  time.Time
	Limits     Limits // its own; those that are zero are the plan's
}

// CreateTenant creates a tenant and its project "default". A bad name or a plan
// that does not exist is a *FieldError.
func (s *Store) CreateTenant(ctx context.Context, actor, name, plan string) (Tenant, Project, error) {
	if !plainText(name, 100) {
		return Tenant{}, Project{}, nameError()
	}
	t := Tenant{ID: ID(newID("ten_")), Name: name, Plan: plan, FairnessID: newFairnessID()}
	var p Project
	err := s.InTenant(ctx, t.ID, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			INSERT INTO tenants (id, name, plan, fairness_id)
			VALUES ($1, $2, $3, $4)
			RETURNING created_at`,
			t.ID, t.Name, t.Plan, t.FairnessID).Scan(&t.CreatedAt)
		if err != nil {
			return planError(err, plan)
		}
		if err := writeAudit(ctx, tx, t.ID, actor, "tenant.create", string(t.ID), map[string]any{"name": name, "plan": plan}); err != nil {
			return err
		}
		p, err = createProject(ctx, tx, actor, t.ID, "default")
		return err
	})
	if err != nil {
		return Tenant{}, Project{}, fmt.Errorf("create tenant: %w", err)
	}
	return t, p, nil
}

// Tenant returns a tenant, or ErrNotFound.
func (s *Store) Tenant(ctx context.Context, id ID) (Tenant, error) {
	var t Tenant
	err := s.InTenant(ctx, id, func(tx pgx.Tx) error {
		return scanTenant(tx.QueryRow(ctx, `
			SELECT id, name, plan, fairness_id, created_at, suspended_at
			  FROM tenants
			 WHERE id = $1`, id), &t)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("load tenant %s: %w", id, err)
	}
	return t, nil
}

// SetPlan moves a tenant to another plan, for new requests from now on.
func (s *Store) SetPlan(ctx context.Context, actor string, id ID, plan string) error {
	err := s.InTenant(ctx, id, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE tenants SET plan = $2 WHERE id = $1`, id, plan)
		if err != nil {
			return planError(err, plan)
		}
		if tag.RowsAffected() == 0 {
			return ErrNotFound
		}
		return writeAudit(ctx, tx, id, actor, "tenant.set_plan", string(id), map[string]any{"plan": plan})
	})
	if err != nil {
		return fmt.Errorf("set plan of tenant %s: %w", id, err)
	}
	return nil
}

// Suspend stops all keys of a tenant and ends their running requests.
// Suspending twice is no error.
func (s *Store) Suspend(ctx context.Context, actor string, id ID) error {
	return s.suspend(ctx, actor, id, true)
}

// Resume lets a suspended tenant's keys work again.
func (s *Store) Resume(ctx context.Context, actor string, id ID) error {
	return s.suspend(ctx, actor, id, false)
}

func (s *Store) suspend(ctx context.Context, actor string, id ID, suspend bool) error {
	action := "tenant.resume"
	if suspend {
		action = "tenant.suspend"
	}
	err := s.InTenant(ctx, id, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE tenants
			   SET suspended_at = CASE WHEN $2 THEN now() END
			 WHERE id = $1
			   AND (suspended_at IS NOT NULL) <> $2`, id, suspend)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return mustExist(ctx, tx, `SELECT EXISTS (SELECT FROM tenants WHERE id = $1)`, id)
		}
		return writeAudit(ctx, tx, id, actor, action, string(id), nil)
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w", action, id, err)
	}
	return nil
}

// CreateProject adds a project to a tenant. A bad name is a *FieldError, an
// unknown tenant ErrNotFound.
func (s *Store) CreateProject(ctx context.Context, actor string, tenant ID, name string) (Project, error) {
	if !plainText(name, 100) {
		return Project{}, nameError()
	}
	var p Project
	err := s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		var err error
		p, err = createProject(ctx, tx, actor, tenant, name)
		return err
	})
	if err != nil {
		return Project{}, fmt.Errorf("create project of tenant %s: %w", tenant, err)
	}
	return p, nil
}

func createProject(ctx context.Context, tx pgx.Tx, actor string, tenant ID, name string) (Project, error) {
	if err := lockTenant(ctx, tx, tenant); err != nil {
		return Project{}, err
	}
	if err := below(ctx, tx, maxProjects, `SELECT count(*) FROM projects WHERE tenant_id = $1`, tenant); err != nil {
		return Project{}, err
	}
	p := Project{Tenant: tenant, ID: ProjectID(newID("prj_")), Name: name, FairnessID: newFairnessID()}
	err := tx.QueryRow(ctx, `
		INSERT INTO projects (tenant_id, id, name, fairness_id)
		VALUES ($1, $2, $3, $4)
		RETURNING created_at`,
		p.Tenant, p.ID, p.Name, p.FairnessID).Scan(&p.CreatedAt)
	if err != nil {
		return Project{}, fmt.Errorf("insert project: %w", err)
	}
	return p, writeAudit(ctx, tx, tenant, actor, "project.create", string(p.ID), map[string]any{"name": name})
}

// ListProjects returns the tenant's projects (at most 1,000 exist), oldest first.
func (s *Store) ListProjects(ctx context.Context, tenant ID) ([]Project, error) {
	var list []Project
	err := s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT tenant_id, id, name, fairness_id, created_at, limits
			  FROM projects
			 WHERE tenant_id = $1
			 ORDER BY created_at, id`, tenant)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Project])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list projects of tenant %s: %w", tenant, err)
	}
	return list, nil
}

// ListTenants is the operator's list over all tenants, oldest first: at most
// limit of those after the given one ("" begins). It needs the worker's pool;
// the application's role can't see beyond one tenant.
func ListTenants(ctx context.Context, worker Querier, after ID, limit int) ([]Tenant, error) {
	rows, err := worker.Query(ctx, `
		SELECT id, name, plan, fairness_id, created_at, suspended_at
		  FROM weir_list_tenants($1, $2)`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Tenant, err error) {
		return t, scanTenant(row, &t)
	})
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return list, nil
}

func scanTenant(row pgx.Row, t *Tenant) error {
	return row.Scan(&t.ID, &t.Name, &t.Plan, &t.FairnessID, &t.CreatedAt, (*zeronull.Timestamptz)(&t.SuspendedAt))
}

// lockTenant makes writers of one tenant wait for each other, so that a count
// still holds when the row that it allowed is inserted.
func lockTenant(ctx context.Context, tx pgx.Tx, tenant ID) error {
	tag, err := tx.Exec(ctx, `SELECT FROM tenants WHERE id = $1 FOR NO KEY UPDATE`, tenant)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	return err
}

// Bounds on what one tenant may have.
const (
	maxProjects = 1000
	maxLiveKeys = 10000
)

func below(ctx context.Context, tx pgx.Tx, most int, count string, tenant ID) error {
	var n int
	if err := tx.QueryRow(ctx, count, tenant).Scan(&n); err != nil {
		return err
	}
	if n >= most {
		return &FieldError{Field: "tenant", Reason: fmt.Sprintf("already has %d, the most there may be", most)}
	}
	return nil
}

// mustExist returns ErrNotFound unless the query says true.
func mustExist(ctx context.Context, tx pgx.Tx, query string, args ...any) error {
	var exists bool
	if err := tx.QueryRow(ctx, query, args...).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		return ErrNotFound
	}
	return nil
}

func nameError() error {
	return &FieldError{Field: "name", Reason: "want 1 to 100 printable characters"}
}

func planError(err error, plan string) error {
	if violates(err, "tenants_plan_fkey") {
		return &FieldError{Field: "plan", Reason: fmt.Sprintf("there is no plan %q", plan)}
	}
	return err
}
