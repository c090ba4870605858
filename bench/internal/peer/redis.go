package peer

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const redisServer = "redis-server"

// serveRedis runs a Redis without persistence, as ours is in memory:
// https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/
func serveRedis(ctx context.Context, h *Host) (*Server, error) {
	path, err := exec.LookPath(redisServer)
	if err != nil {
		return nil, err
	}
	dir, err := h.folder("redis")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	port, err := freePort() // Redis takes port 0 for none
	if err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + port
	ready := func(line string) (string, bool) {
		return address, strings.Contains(line, "Ready to accept connections")
	}
	return h.start(ctx, ready, nil, path,
		"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", dir, "--daemonize", "no")
}

func redislockPeer() *Peer {
	return &Peer{
		Name: "redislock",
		About: "bsm/redislock on go-redis with its default pool of connections, on Redis without persistence. A waiter " +
			"tries every 16 ms, the least that its documentation recommends. It has no fencing tokens: the guarded write is a " +
			"script that sets the key only while the lock has its value.",
		needs: redisServer,
		Serve: serveRedis,
		Lock:  dialRedislock,
	}
}

// redislockLocker is a client of redislock.
type redislockLocker struct {
	redis *redis.Client
	locks *redislock.Client
}

// guardedSet sets KEYS[2] only while the lock KEYS[1] has the holder's value. It compares as
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ does in a release.
var guardedSet = redis.NewScript(`
if redis.call("get", KEYS[1]) == ARGV[1] then
  return redis.call("set", KEYS[2], ARGV[2])
end
return redis.status_reply("stale")`)

// pollEvery is how often a waiter tries. Its minimum of 16 ms is from
// https://pkg.go.dev/github.com/bsm/redislock#ExponentialBackoff
const pollEvery = 16 * time.Millisecond

// dialRedislock connects with the default pool: "In most cases, that is more than enough and
// tweaking it rarely helps", says https://redis.uptrace.dev/guide/go-redis-debugging.html
func dialRedislock(ctx context.Context, server *Server, id string) (Locker, error) {
	client := redis.NewClient(&redis.Options{Addr: server.Address, ClientName: id})
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		return nil, err
	}
	return &redislockLocker{redis: client, locks: redislock.New(client)}, nil
}

func (l *redislockLocker) TryObtain(ctx context.Context, name string) (Held, error) {
	lock, err := l.locks.Obtain(ctx, name, TTL, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, ErrHeld
	}
	return lock, err
}

func (l *redislockLocker) Obtain(ctx context.Context, name string) (Held, error) {
	return l.locks.Obtain(ctx, name, TTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(pollEvery)})
}

func (l *redislockLocker) Release(ctx context.Context, held Held) error {
	return held.(*redislock.Lock).Release(ctx)
}

func (l *redislockLocker) Renewal(_ context.Context, held Held) (func(context.Context) error, error) {
	lock := held.(*redislock.Lock)
	return func(ctx context.Context) error { return lock.Refresh(ctx, TTL, nil) }, nil
}

func (l *redislockLocker) Writer(_ context.Context, held Held,
	key string) (func(context.Context, []byte) error, error) {
	lock := held.(*redislock.Lock)
	keys, token := []string{lock.Key(), key}, lock.Token()
	return func(ctx context.Context, value []byte) error {
		reply, err := guardedSet.Run(ctx, l.redis, keys, token, value).Text()
		if err == nil && reply != "OK" {
			return ErrStale
		}
		return err
	}, nil
}

func (l *redislockLocker) Close() { _ = l.redis.Close() }

func rueidislockPeer() *Peer {
	return &Peer{
		Name:  "rueidislock",
		About: "redis/rueidis/rueidislock, one connection with client-side caching, on the same kind of Redis.",
		Lacks: map[Operation]string{
			Renewal: "rueidislock extends its locks by itself, and has no call for it",
			Write:   "rueidislock has no fencing tokens, and does not show the value of a lock",
		},
		needs: redisServer,
		Serve: serveRedis,
		Lock:  dialRueidislock,
	}
}

// rueidislockLocker is a client of rueidislock. What it holds is what releases it.
type rueidislockLocker struct{ locker rueidislock.Locker }

// dialRueidislock takes the options for one Redis of version 7.0.5 or later from
// https://github.com/redis/rueidis/tree/main/rueidislock
func dialRueidislock(_ context.Context, server *Server, id string) (Locker, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{server.Address}, ClientName: id},
		KeyMajority:    1,
		NoLoopTracking: true,
		KeyValidity:    TTL,
		// The time after which it gives up one key and tries the next. There is none here, so the
		// default of 20 ms would only fail attempts on a busy machine.
		TryNextAfter: TTL,
	})
	if err != nil {
		return nil, err
	}
	return &rueidislockLocker{locker}, nil
}

func (l *rueidislockLocker) TryObtain(ctx context.Context, name string) (Held, error) {
	_, release, err := l.locker.TryWithContext(ctx, name)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return nil, ErrHeld
	}
	return release, err
}

// Obtain may wait until ctx ends although the name is free. rueidis v1.0.79: a goroutine that an
// attempt starts may remove the waiter from those that get notifications, if it runs before the
// attempt is counted as failed.
func (l *rueidislockLocker) Obtain(ctx context.Context, name string) (Held, error) {
	_, release, err := l.locker.WithContext(ctx, name)
	return release, err
}

// Release waits for the answer of Redis, for as long as the lock is valid at most.
func (l *rueidislockLocker) Release(_ context.Context, held Held) error {
	held.(context.CancelFunc)()
	return nil
}

func (l *rueidislockLocker) Renewal(context.Context, Held) (func(context.Context) error, error) {
	return nil, errors.ErrUnsupported
}

func (l *rueidislockLocker) Writer(context.Context, Held, string) (func(context.Context, []byte) error, error) {
	return nil, errors.ErrUnsupported
}

func (l *rueidislockLocker) Close() { l.locker.Close() }
