package admission

import (
	"crypto/x509"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClientConfig says how Redis is reached.
type ClientConfig struct {
	URL       string // redis://, rediss:// for TLS, or unix://
	User      string // of Redis' access list; over the URL's where it is set
	Password  string // likewise
	CA        []byte // certificates in PEM that sign Redis'; nil: the system's
	Plaintext bool   // allow redis:// to other machines
}

// ErrPlaintext means that Redis on another machine would be talked to, and be
// told its password, without TLS.
var ErrPlaintext = errors.New("admission: Redis on another machine needs rediss://")

// Client returns a Redis client with the deadlines that a call on a request's way
// needs. It connects when it is first used. Errors do not repeat the URL, which
// may hold a password.
func Client(c ClientConfig) (*redis.Client, error) {
	opts, err := redis.ParseURL(c.URL)
	if err != nil {
		return nil, errors.New("admission: not a redis:// or rediss:// URL")
	}
	if opts.TLSConfig == nil && opts.Network != "unix" && !c.Plaintext && !loopback(opts.Addr) {
		return nil, ErrPlaintext
	}
	if c.User != "" {
		opts.Username = c.User
	}
	if c.Password != "" {
		opts.Password = c.Password
	}
	if c.CA != nil {
		if opts.TLSConfig == nil {
			return nil, errors.New("admission: certificates for Redis, but its URL is not rediss://")
		}
		opts.TLSConfig.RootCAs = x509.NewCertPool()
		if !opts.TLSConfig.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("admission: no certificate in PEM for Redis")
		}
	}
	opts.ContextTimeoutEnabled = true
	opts.MaxRetries = 1 // a pooled connection that Redis closed; Admit may be repeated
	opts.DialTimeout = time.Second
	opts.DialerRetries = 1
	opts.ReadTimeout = time.Second
	opts.WriteTimeout = time.Second
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(opts), nil
}

// loopback reports whether an address stays on this machine.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
