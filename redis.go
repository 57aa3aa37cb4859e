package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/gateway/admission"
)

func openRedis(c *Config) (*redis.Client, error) {
	settings := admission.ClientConfig{
		URL: c.RedisURL.Reveal(), User: c.RedisUser.Reveal(), Password: c.RedisPassword.Reveal(), Plaintext: c.RedisPlaintext == "on",
	}
	if c.RedisCA != "" {
		var err error
		if settings.CA, err = os.ReadFile(c.RedisCA); err != nil {
			return nil, fmt.Errorf("redis_ca_file: %w", err)
		}
	}
	client, err := admission.Client(settings)
	if errors.Is(err, admission.ErrPlaintext) {
		return nil, errors.New("WEIR_REDIS_URL: Redis on another machine needs rediss://, or redis_plaintext: on where the network between is your own")
	}
	if err != nil {
		return nil, fmt.Errorf("WEIR_REDIS_URL: %w", err)
	}
	return client, nil
}

func checkRedis(ctx context.Context, c *Config) finding {
	client, err := openRedis(c)
	if err != nil {
		return fault("redis", err.Error(), "correct WEIR_REDIS_URL: redis://user:password@host:6379/0, or rediss:// for TLS")
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	denied, err := deniedCommands(ctx, client)
	switch {
	case err != nil && redis.HasErrorPrefix(err, "WRONGPASS"), err != nil && redis.HasErrorPrefix(err, "NOAUTH"):
		return fault("redis", err.Error(), "correct WEIR_REDIS_USER and WEIR_REDIS_PASSWORD")
	case err != nil:
		return warning("redis", err.Error(), "start it; until then each replica counts for itself, with limits divided by the number of replicas")
	case len(denied) > 0:
		return fault("redis", "the user may not "+strings.Join(denied, ", "), "give it what docs/operating.md lists: ACL SETUSER weir ...")
	default:
		return fine("redis")
	}
}

// redisProbes are all commands that limits and events use, on keys that are
// theirs alone and expire.
func redisProbes() [][]any {
	const hash, scores, names, text, stream = "weir:{doctor}:hash", "weir:{doctor}:scores", "weir:{doctor}:names", "weir:{doctor}:text", "weir:{doctor}:stream"
	return [][]any{
		{"ping"},
		{"time"},
		{"eval", "return 1", 0},
		{"evalsha", strings.Repeat("0", 40), 0},
		{"script", "load", "return 1"},
		{"hset", hash, "f", 1},
		{"hmget", hash, "f"},
		{"hexists", hash, "f"},
		{"hscan", hash, 0},
		{"hdel", hash, "f"},
		{"zadd", scores, 1, "m"},
		{"zscore", scores, "m"},
		{"zcard", scores},
		{"zcount", scores, 0, 1},
		{"zremrangebyscore", scores, 0, 0},
		{"zrem", scores, "m"},
		{"sadd", names, "m"},
		{"smembers", names},
		{"expire", names, 1},
		{"set", text, 1, "px", 1000},
		{"get", text},
		{"exists", text},
		{"pexpire", text, 1000},
		{"del", text, names},
		{"xadd", stream, "*", "f", "v"},
		{"xrange", stream, "-", "+"},
		{"del", stream},
		{"publish", "weir:events:{doctor}", ""},
	}
}

// deniedCommands tries what Redis is used for and lists what the user may not do.
// An error means that it could not be asked.
func deniedCommands(ctx context.Context, client *redis.Client) ([]string, error) {
	var denied []string
	for _, probe := range redisProbes() {
		name := fmt.Sprint(probe[0])
		err := client.Do(ctx, probe...).Err()
		switch {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.HasErrorPrefix(err, "NOPERM"):
			denied = append(denied, strings.ToUpper(name))
		default:
			return nil, err
		}
	}
	topic := client.Subscribe(ctx, "weir:events:{doctor}")
	defer func() { _ = topic.Close() }()
	if _, err := topic.Receive(ctx); redis.HasErrorPrefix(err, "NOPERM") {
		denied = append(denied, "SUBSCRIBE")
	} else if err != nil {
		return nil, err
	}
	slices.Sort(denied)
	return slices.Compact(denied), nil
}
