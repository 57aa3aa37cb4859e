package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations"
	"weir/migrations/pgserver"
)

// Names of databases that are ours to drop.
const (
	testPrefix     = "weir_test_"
	templatePrefix = "weir_template_"
)

// slots bounds how many test processes of this user have private servers at
// the same time.
const slots = 64

// templateLock keeps processes that share a server from making the template
// twice.
const templateLock = 0x77656974 // "weit"

// server is where this process' test databases live.
type server struct {
	admin    *pgxpool.Pool
	adminURL string
	secret   string // of the roles' passwords
	logins   migrations.Logins
	template string
}

// once holds the one server of this process: tests have no other common owner.
//
//nolint:gochecknoglobals // a test process has no main to own it
var once struct {
	sync.Mutex
	server *server
	err    error
}

// start returns the process' server, which ends with the process, in whatever
// way that ends. A failure is final: every test reports it at once.
func start(ctx context.Context) (*server, error) {
	once.Lock()
	defer once.Unlock()
	if once.server == nil && once.err == nil {
		once.server, once.err = newServer(ctx)
	}
	return once.server, once.err
}

func newServer(ctx context.Context) (*server, error) {
	s, private := &server{}, false
	s.adminURL = os.Getenv("WEIR_TEST_DATABASE_URL") //nolint:forbidigo // read here for every package's tests
	if s.adminURL == "" {
		pg, err := startPrivate(ctx)
		if err != nil {
			return nil, err
		}
		s.adminURL, s.secret, private = pg.URL("postgres"), pg.Secret(), true
	} else if u, err := url.Parse(s.adminURL); err == nil {
		s.secret, _ = u.User.Password()
	} else {
		return nil, errors.New("WEIR_TEST_DATABASE_URL is no URL") // whose text may hold a password
	}
	config, err := pgxpool.ParseConfig(s.adminURL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = maxConns
	if s.admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if private {
		if err := s.sweep(ctx); err != nil {
			return nil, fmt.Errorf("drop what earlier tests left: %w", err)
		}
	}
	if err := s.ensureTemplate(ctx); err != nil {
		return nil, fmt.Errorf("make template database: %w", err)
	}
	return s, nil
}

// startPrivate takes the first free slot. Slots are kept between processes: to
// start a cluster that exists takes a fraction of making one, and the template
// is in it.
func startPrivate(ctx context.Context) (*pgserver.Server, error) {
	base := filepath.Join(os.TempDir(), "weir-pgtest-"+strconv.Itoa(os.Getuid()))
	// Others may pass, for root runs Postgres as another user; only we may list
	// and write, and the slots themselves are closed.
	if err := os.Mkdir(base, 0o711); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // see above
		return nil, err
	}
	if err := ours(base); err != nil {
		return nil, err
	}
	for slot := range slots {
		pg, err := pgserver.Start(ctx, pgserver.Config{
			Dir:      filepath.Join(base, strconv.Itoa(slot)),
			Settings: map[string]string{"max_connections": "500"},
			Log:      slog.New(slog.DiscardHandler),
		})
		if !errors.Is(err, pgserver.ErrInUse) {
			return pg, err
		}
	}
	return nil, fmt.Errorf("all %d slots in %s are in use", slots, base)
}

// sweep drops what killed processes left in this slot, and templates of other
// schemas.
func (s *server) sweep(ctx context.Context) error {
	current, err := templateName()
	if err != nil {
		return err
	}
	rows, err := s.admin.Query(ctx, `
		SELECT datname
		FROM pg_database
		WHERE starts_with(datname, $1) OR (starts_with(datname, $2) AND datname <> $3)`,
		testPrefix, templatePrefix, current)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.drop(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// ensureTemplate makes the database that tests clone. Its name follows from the
// migrations' text; that it is marked as a template says that it is whole.
func (s *server) ensureTemplate(ctx context.Context) (err error) {
	if s.template, err = templateName(); err != nil {
		return err
	}
	conn, err := s.admin.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, templateLock); err != nil {
		return err
	}
	defer func() {
		_, uerr := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, templateLock)
		err = errors.Join(err, uerr)
	}()

	var whole bool
	err = conn.QueryRow(ctx, `SELECT datistemplate FROM pg_database WHERE datname = $1`, s.template).Scan(&whole)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if !whole {
		if err := s.drop(ctx, s.template); err != nil {
			return err
		}
	}
	if s.logins, err = migrations.Prepare(ctx, s.adminURL, s.template, s.secret); err != nil || whole {
		return err
	}
	if _, err := migrations.Up(ctx, slog.New(slog.DiscardHandler), s.logins.Owner); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `ALTER DATABASE `+quote(s.template)+` IS_TEMPLATE true ALLOW_CONNECTIONS false`)
	return err
}

// clone creates a database like the template. Rights on a database itself are
// not cloned with it.
func (s *server) clone(ctx context.Context, name string) error {
	_, err := s.admin.Exec(ctx, `CREATE DATABASE `+quote(name)+` TEMPLATE `+quote(s.template)+` OWNER weir_owner`)
	if err != nil {
		return err
	}
	_, err = s.admin.Exec(ctx, `REVOKE TEMPORARY ON DATABASE `+quote(name)+` FROM PUBLIC`)
	return err
}

func (s *server) drop(ctx context.Context, name string) error {
	if strings.HasPrefix(name, templatePrefix) {
		var there bool
		if err := s.admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&there); err != nil || !there {
			return err
		}
		if _, err := s.admin.Exec(ctx, `ALTER DATABASE `+quote(name)+` IS_TEMPLATE false`); err != nil {
			return err
		}
	}
	_, err := s.admin.Exec(ctx, `DROP DATABASE IF EXISTS `+quote(name)+` WITH (FORCE)`)
	return err
}

func templateName() (string, error) {
	files := migrations.Files()
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(text))
		sum.Write(text)
	}
	// The month too: migrations make partitions for the months to come.
	return templatePrefix + time.Now().UTC().Format("200601") + "_" + hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
