package admission

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Client returns a Redis client for a redis:// or rediss:// URL, with the
// deadlines that a call on a request's way needs. It connects when it is first
// used. The error does not repeat the URL, which may hold a password.
func Client(url string) (*redis.Client, error) {
	opts, err := redis.ParseURL(url)
	if err != nil {
		return nil, errors.New("admission: not a redis:// or rediss:// URL")
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
