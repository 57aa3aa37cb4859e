package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis keeps logs in Redis, as streams, for all replicas. Readers are woken by
// a message and look besides every second: a lost message costs that. It is
// safe for concurrent use.
type Redis struct {
	log    *slog.Logger
	client *redis.Client
	cfg    Config

	mu    sync.Mutex
	waits map[string]*waiters // by channel
	topic *redis.PubSub
}

// waiters are those who read one log in this process.
type waiters struct {
	readers int
	grown   chan struct{} // closed when something was written
}

// NewRedis makes one. It works without Run, but then readers learn of events
// every second only.
func NewRedis(log *slog.Logger, client *redis.Client, cfg Config) *Redis {
	return &Redis{log: log, client: client, cfg: cfg.withDefaults(), waits: map[string]*waiters{}, topic: client.Subscribe(context.Background())}
}

const lookEvery = time.Second

func streamKey(key string) string { return "weir:events:{" + key + "}" }
func seatsKey(key string) string  { return streamKey(key) + ":seats" }
func sizeKey(key string) string   { return streamKey(key) + ":size" }

// Ids of entries are the numbers of their last events, one up: an id of 0 is
// not allowed. Redis refuses one that isn't greater than all before.
func entryID(last int) string { return strconv.Itoa(last+1) + "-0" }

// The second key has the log's size, or -1 after its end, and the number of its
// last event. The last argument says that the entry replaces all others.
const appendScript = `
local size, last = string.match(redis.call('GET', KEYS[2]) or '0:-1', '^(-?%d+):?(-?%d*)$')
size = tonumber(size)
if redis.call('EXISTS', KEYS[1]) == 0 then last = '-1' end
local first = tonumber(ARGV[7])
if size < 0 then return 'stale' end
if last ~= '' and tonumber(last) >= first then return 'stale' end
if last ~= '' and tonumber(last) + 1 < first then return 'lost' end
if ARGV[8] == '1' then
  redis.call('DEL', KEYS[1])
  size = 0
end
if size + #ARGV[2] + tonumber(ARGV[3]) > tonumber(ARGV[4]) then return 'full' end
local added = redis.pcall('XADD', KEYS[1], ARGV[1], 'b', ARGV[2])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'equal or smaller') then return 'stale' end
  return added
end
if ARGV[6] == '1' then size = -1 else size = size + #ARGV[2] + tonumber(ARGV[3]) end
redis.call('SET', KEYS[2], size .. ':' .. ARGV[9], 'PX', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PUBLISH', KEYS[1], '')
return 'ok'`

// Append is Memory.Append, but that an error may be Redis's as well.
func (r *Redis) Append(ctx context.Context, key string, first int, e Entry, end bool) error {
	return r.write(ctx, key, first, e, end, false)
}

// Restart is Memory.Restart, but that an error may be ErrFull or Redis's as well.
func (r *Redis) Restart(ctx context.Context, key string, first int, e Entry) error {
	return r.write(ctx, key, first, e, false, true)
}

func (r *Redis) write(ctx context.Context, key string, first int, e Entry, end, alone bool) error {
	life, last := r.cfg.Life, "0"
	if end {
		life, last = r.cfg.After, "1"
	}
	answer, err := r.client.Eval(ctx, appendScript, []string{streamKey(key), sizeKey(key)},
		entryID(e.Last), e.Box, overhead, r.cfg.MaxBytes, life.Milliseconds(), last, first, alone, e.Last).Text()
	switch {
	case err != nil:
		return fmt.Errorf("append event: %w", err)
	case answer == "stale":
		return ErrStale
	case answer == "lost":
		return ErrLost
	case answer == "full":
		return ErrFull
	default:
		return nil
	}
}

// Read is Memory.Read.
func (r *Redis) Read(ctx context.Context, key string, after int, wait time.Duration) ([]Entry, error) {
	w, err := r.enter(ctx, key)
	if err != nil {
		return nil, err
	}
	defer r.leave(ctx, key, w)
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		grown := r.growth(w) // before looking: what comes in between wakes
		found, err := r.look(ctx, key, after)
		if err != nil || len(found) > 0 {
			return found, err
		}
		select {
		case <-grown:
		case <-look.C:
		case <-deadline.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// page bounds what one look takes from Redis.
const page = 256

func (r *Redis) look(ctx context.Context, key string, after int) ([]Entry, error) {
	messages, err := r.client.XRangeN(ctx, streamKey(key), "("+entryID(after), "+", page).Result()
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	var found []Entry
	for _, m := range messages {
		number, _, _ := strings.Cut(m.ID, "-")
		n, err := strconv.Atoi(number)
		box, ok := m.Values["b"].(string)
		if err != nil || !ok {
			return nil, fmt.Errorf("read events: entry %q is none of ours", m.ID)
		}
		found = append(found, Entry{Last: n - 1, Box: []byte(box)})
	}
	return found, nil
}

// Drop forgets a log.
func (r *Redis) Drop(ctx context.Context, key string) error {
	if err := r.client.Del(ctx, streamKey(key), sizeKey(key)).Err(); err != nil {
		return fmt.Errorf("drop events: %w", err)
	}
	return nil
}

const holdScript = `
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[2])
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2] + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1`

// Hold is Memory.Hold. Its clock is this process's: replicas' clocks that
// differ by more than Config.SeatLife free seats early.
func (r *Redis) Hold(ctx context.Context, key, seat string, most int) (bool, error) {
	n, err := r.client.Eval(ctx, holdScript, []string{seatsKey(key)},
		seat, time.Now().UnixMilli(), r.cfg.SeatLife.Milliseconds(), most).Int()
	if err != nil {
		return false, fmt.Errorf("hold a seat: %w", err)
	}
	return n == 1, nil
}

// Leave gives a seat back.
func (r *Redis) Leave(ctx context.Context, key, seat string) error {
	if err := r.client.ZRem(ctx, seatsKey(key), seat).Err(); err != nil {
		return fmt.Errorf("leave a seat: %w", err)
	}
	return nil
}

// Run wakes readers until ctx ends.
func (r *Redis) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = r.topic.Close() }) // a read doesn't end with its context
	defer stop()
	for {
		m, err := r.topic.ReceiveMessage(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, redis.ErrClosed):
			return nil
		case err != nil: // it connects anew; readers look every second meanwhile
			r.log.DebugContext(ctx, "messages of events are interrupted", "error", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(lookEvery):
			}
		default:
			r.wake(m.Channel)
		}
	}
}

func (r *Redis) wake(channel string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.waits[channel]; w != nil {
		close(w.grown)
		w.grown = make(chan struct{})
	}
}

func (r *Redis) growth(w *waiters) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.grown
}

func (r *Redis) enter(ctx context.Context, key string) (*waiters, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	channel := streamKey(key)
	w := r.waits[channel]
	if w == nil {
		if err := r.topic.Subscribe(ctx, channel); err != nil && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		w = &waiters{grown: make(chan struct{})}
		r.waits[channel] = w
	}
	w.readers++
	return w, nil
}

func (r *Redis) leave(ctx context.Context, key string, w *waiters) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.readers--; w.readers == 0 {
		delete(r.waits, streamKey(key))
		_ = r.topic.Unsubscribe(context.WithoutCancel(ctx), streamKey(key)) // at worst it is told in vain
	}
}
