package migrations

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Logins are the URLs with which an installation connects to its database.
type Logins struct {
	Owner  string // owns the schema; runs migrations and nothing else
	App    string // weir_app
	Worker string // weir_worker
}

// The login roles that Prepare makes.
const (
	ownerRole  = "weir_owner"
	appRole    = "weir_app"
	workerRole = "weir_worker"
)

// prepareLock keeps processes that prepare the same server apart: Postgres
// refuses concurrent changes of one role.
const prepareLock = 0x77656972 // "weir"

// Prepare does on a private server what docs/database.md asks of an operator:
// it creates the three login roles and the database, where they don't exist.
// adminURL is a superuser's. The roles' passwords are derived from the secret,
// so that every caller with the same secret gets the same URLs; an empty secret
// sets no passwords, for a server that asks for none.
func Prepare(ctx context.Context, adminURL, database, secret string) (Logins, error) {
	admin, err := url.Parse(adminURL)
	if err != nil {
		return Logins{}, errors.New("prepare database: the administrator's URL is malformed") // its text may hold a password
	}
	conn, err := pgx.Connect(ctx, adminURL)
	if err != nil {
		return Logins{}, fmt.Errorf("prepare database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a failed statement said so

	// A statement that fails is not to put its password into the server's log.
	if _, err := conn.Exec(ctx, `SET log_min_error_statement = panic`); err != nil {
		return Logins{}, fmt.Errorf("prepare database: %w", err)
	}
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, prepareLock); err != nil {
		return Logins{}, fmt.Errorf("prepare database: %w", err)
	}
	for _, role := range []string{ownerRole, appRole, workerRole} {
		if err := ensureLogin(ctx, conn, role, password(secret, role)); err != nil {
			return Logins{}, fmt.Errorf("prepare role %s: %w", role, err)
		}
	}
	if err := ensureDatabase(ctx, conn, database); err != nil {
		return Logins{}, fmt.Errorf("prepare database %s: %w", database, err)
	}
	as := func(role string) string {
		u := *admin
		u.Path = "/" + database
		u.User = url.User(role)
		if p := password(secret, role); p != "" {
			u.User = url.UserPassword(role, p)
		}
		return u.String()
	}
	return Logins{Owner: as(ownerRole), App: as(appRole), Worker: as(workerRole)}, nil
}

func password(secret, role string) string {
	if secret == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(role))
	return hex.EncodeToString(mac.Sum(nil))
}

// ensureLogin takes away what a role must not have as well as giving the login:
// the role may be older than we are.
func ensureLogin(ctx context.Context, conn *pgx.Conn, role, password string) error {
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, role).Scan(&exists); err != nil {
		return err
	}
	name := pgx.Identifier{role}.Sanitize()
	if !exists {
		if _, err := conn.Exec(ctx, `CREATE ROLE `+name); err != nil {
			return err
		}
	}
	secret := "NULL"
	if password != "" {
		secret = "'" + password + "'" // hexadecimal digits: nothing to escape
	}
	_, err := conn.Exec(ctx, `ALTER ROLE `+name+
		` LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE PASSWORD `+secret)
	return err
}

func ensureDatabase(ctx context.Context, conn *pgx.Conn, database string) error {
	var existing []string
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database`)
	if err != nil {
		return err
	}
	if existing, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return err
	}
	if slices.Contains(existing, database) {
		return nil
	}
	_, err = conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{database}.Sanitize()+
		` OWNER `+pgx.Identifier{ownerRole}.Sanitize())
	return err
}
