// Package pgtest gives each test a database of its own with the whole schema,
// on a real Postgres. The first test of a process starts a private server;
// WEIR_TEST_DATABASE_URL, a superuser's URL, names a running one instead.
package pgtest

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations"
)

// maxConns bounds each pool: many tests run at once on one server.
const maxConns = 4

// dropLimit bounds the clean-up of one test.
const dropLimit = 30 * time.Second

// DB is a database that belongs to one test: empty, migrated, and reached as
// each of the three roles. None of them is a superuser, as in production: what
// works here works there.
type DB struct {
	Owner  *pgxpool.Pool // owns the schema; bound by row-level security like the others
	App    *pgxpool.Pool // weir_app
	Worker *pgxpool.Pool // weir_worker

	OwnerURL, AppURL, WorkerURL string

	// AdminURL is a superuser's: for arranging what none of the roles may do,
	// and never for the code under test.
	AdminURL string
}

// New returns a fresh database. When the test ends its pools are closed and it
// is dropped. Every pool opens its connections when they are first used.
func New(tb testing.TB) *DB {
	tb.Helper()
	return open(tb, func(ctx context.Context, s *server, name string) error {
		return s.clone(ctx, name)
	})
}

// NewEmpty is New without a schema: for tests of the migrations themselves.
func NewEmpty(tb testing.TB) *DB {
	tb.Helper()
	return open(tb, func(ctx context.Context, s *server, name string) error {
		_, err := migrations.Prepare(ctx, s.adminURL, name, s.secret)
		return err
	})
}

func open(tb testing.TB, create func(ctx context.Context, s *server, name string) error) *DB {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context()) // ends before the clean-up
	s, err := start(ctx)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	name := testPrefix + strings.ToLower(rand.Text())
	if err := create(ctx, s, name); err != nil {
		tb.Fatalf("pgtest: create database: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, dropLimit)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			tb.Errorf("pgtest: drop database: %v", err)
		}
	})
	db := &DB{
		OwnerURL:  withDatabase(s.logins.Owner, name),
		AppURL:    withDatabase(s.logins.App, name),
		WorkerURL: withDatabase(s.logins.Worker, name),
		AdminURL:  withDatabase(s.adminURL, name),
	}
	db.Owner = pool(tb, db.OwnerURL)
	db.App = pool(tb, db.AppURL)
	db.Worker = pool(tb, db.WorkerURL)
	return db
}

func pool(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = maxConns
	p, err := pgxpool.NewWithConfig(context.WithoutCancel(tb.Context()), config)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(p.Close)
	return p
}

// Admin is a superuser's connection to the test's database, closed with the
// test.
func (db *DB) Admin(tb testing.TB) *pgx.Conn {
	tb.Helper()
	ctx := context.WithoutCancel(tb.Context())
	conn, err := pgx.Connect(ctx, db.AdminURL)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() { _ = conn.Close(ctx) })
	return conn
}

// withDatabase returns the URL with another database name.
func withDatabase(dsn, name string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return dsn // it was parsed before
	}
	u.Path = "/" + name
	return u.String()
}
