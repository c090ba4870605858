// Package events passes what happens at a store on: to its observer, and to its log.
//
// Requests must not wait for either. So events are queued, in the order in which they happened, and one
// goroutine takes them. The queue has a bound: events beyond it are left out and counted.
package events

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// maxQueued bounds the events that wait, and maxRare those of them that every log should have:
	// there is room for these when others fill the queue.
	maxQueued, maxRare = 8192, 1024
	// keptRoom is for how many events the queue keeps memory.
	keptRoom = 1024
	// maxTakeOvers is how many client ids are watched for flapping.
	maxTakeOvers = 1024
)

// Queue is the queue of events of one store. Its methods are safe for concurrent use.
type Queue struct {
	observe func(activity.Event) // may be nil
	values  bool
	logger  *slog.Logger
	panics  *logs.Limiter
	lost    *logs.Limiter
	forced  *logs.Limiter
	wake    chan struct{}

	takeOvers *activity.TakeOvers // of Run's goroutine

	mu      sync.Mutex
	waiting []activity.Event
	rare    int    // of those that wait
	leftOut uint64 // since the last that was queued
}

// New returns the queue of a store. observe may be nil; values says whether events have values. Run
// must be called for the events to be taken.
func New(observe func(activity.Event), values bool, logger *slog.Logger) *Queue {
	return &Queue{
		observe:   observe,
		values:    values,
		logger:    logger,
		panics:    logs.NewLimiter(logger, slog.LevelError, "the observer of the store has panicked; it goes on with the next event"),
		lost:      logs.NewLimiter(logger, slog.LevelWarn, "events were neither observed nor logged: they came faster than they were taken"),
		forced:    logs.NewLimiter(logger, slog.LevelWarn, "a client has taken a lease from its holder by force"),
		wake:      make(chan struct{}, 1),
		takeOvers: activity.NewTakeOvers(maxTakeOvers),
	}
}

// Wanted reports whether there is an observer or a log that takes each event. Otherwise only a rare one
// is worth its cost.
func (q *Queue) Wanted() bool {
	return q.observe != nil || q.logger.Enabled(context.Background(), slog.LevelDebug)
}

// Request returns the event of a request that is read now, without its reply. Its texts are cut, and
// share nothing with the request.
func (q *Queue) Request(command *statestore.Command, now time.Time) *activity.Event {
	e := &activity.Event{
		Kind:      activity.Request,
		At:        now,
		Client:    activity.CutKey(command.Client),
		Verb:      command.Verb,
		Key:       activity.CutKey(command.Key),
		Condition: command.Condition,
		Lifetime:  command.Lifetime,
		Stop:      command.Stop,
		Rank:      -1,
		Token:     command.HasToken(),
	}
	if clock, ok := command.Timestamp(); ok {
		e.HasClock, e.ClockOffset = true, time.UnixMilli(clock.Wall).Sub(now)
	}
	value := command.Value
	if holder := lastColon(value); holder >= 0 {
		e.Holder = string(value[:min(holder, activity.MaxText)])
		if strings.HasSuffix(command.Key, protocol.FailBackSuffix) {
			e.Rank = rankOf(value[holder+1:])
		}
	}
	if q.values {
		e.Value = string(value[:min(len(value), activity.MaxText)])
	}
	return e
}

func lastColon(value []byte) int {
	for i := len(value) - 1; i >= 0; i-- {
		if value[i] == ':' {
			return i
		}
	}
	return -1
}

// rankOf returns the rank that ends the value of a fail-back request; -1 if that is none.
func rankOf(text []byte) int {
	if len(text) > 10 {
		return -1
	}
	rank, err := strconv.Atoi(string(text))
	if err != nil || rank < 0 {
		return -1
	}
	return rank
}

// Answered queues the event of a request with its reply, which may leave now.
func (q *Queue) Answered(e *activity.Event, reply statestore.Reply) {
	if reply.Outcome == statestore.Expired {
		return // it is dropped, which has an event of its own
	}
	now := time.Now()
	e.Took = now.Sub(e.At)
	e.At = now
	e.Outcome, e.Version = reply.Outcome, reply.Version
	if reply.Err != nil {
		e.Refusal = activity.CutText(reply.Err.Error())
	}
	if q.Wanted() || e.Forced != "" && e.Outcome == statestore.Deleted {
		q.Push(*e)
	}
}

// Push queues an event. It does not block, and calls nothing.
func (q *Queue) Push(e activity.Event) {
	rare := isRare(&e)
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting)-q.rare >= maxQueued && !rare || q.rare >= maxRare && rare {
		q.leftOut++
		return
	}
	if rare {
		q.rare++
	}
	e.Lost, q.leftOut = q.leftOut, 0
	q.waiting = append(q.waiting, e)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func isRare(e *activity.Event) bool { return e.Forced != "" || e.Kind == activity.TakenOver }

// take returns all events that wait. It takes the memory of the events that were taken before.
func (q *Queue) take(spare []activity.Event) []activity.Event {
	clear(spare)
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.waiting
	q.waiting, q.rare = spare[:0], 0
	return taken
}

// Run passes events on until ctx ends, and then those that are left.
func (q *Queue) Run(ctx context.Context) {
	defer q.panics.Close()
	defer q.lost.Close()
	defer q.forced.Close()
	var taken []activity.Event
	for running := true; running; {
		select {
		case <-q.wake:
		case <-ctx.Done():
			running = false
		}
		taken = q.take(taken)
		for i := range taken {
			q.pass(&taken[i])
		}
		if cap(taken) > keptRoom {
			taken = nil // a burst must not cost its memory for ever
		}
	}
}

func (q *Queue) pass(e *activity.Event) {
	if e.Lost > 0 {
		q.lost.Log("events", e.Lost)
	}
	q.log(e)
	if q.observe != nil {
		q.call(e)
	}
}

// call calls the observer, and recovers from its panic: a store must not end because a page is wrong.
func (q *Queue) call(e *activity.Event) {
	defer func() {
		if value := recover(); value != nil {
			q.panics.Log("error", logs.Text(fmt.Sprint(value)), "event", e.Kind.String(), "stack", string(debug.Stack()))
		}
	}()
	q.observe(*e)
}

// log writes the line of an event, if there is one.
func (q *Queue) log(e *activity.Event) {
	if e.Kind == activity.TakenOver {
		q.logTakeOver(e)
	}
	if e.Kind != activity.Request {
		return
	}
	if e.Forced != "" && e.Outcome == statestore.Deleted {
		q.forced.Log("key", logs.Name(e.Key), "client", logs.Name(e.Client), "user", logs.Name(e.User), "remote", e.Remote,
			"says", logs.Text(e.Forced), "verb", e.Verb.String(), "holder", logs.Name(e.Holder), "version", e.Version.String())
	}
	if !q.logger.Enabled(context.Background(), slog.LevelDebug) {
		return // else the attributes would be allocated for nothing
	}
	attributes := make([]any, 0, 20)
	attributes = append(attributes, "verb", e.Verb.String(), "key", logs.Name(e.Key), "outcome", e.Outcome.String())
	if e.Refusal != "" {
		attributes = append(attributes, "refusal", logs.Text(e.Refusal))
	}
	attributes = append(attributes, "client", logs.Name(e.Client))
	if e.User != "" {
		attributes = append(attributes, "user", logs.Name(e.User))
	}
	if e.Remote != "" {
		attributes = append(attributes, "remote", e.Remote)
	}
	if e.Will {
		attributes = append(attributes, "will", true)
	}
	q.logger.Debug("request", append(attributes, "took", e.Took)...)
}

// logTakeOver warns of a client id that is taken over and back, the first time and then less and less
// often.
func (q *Queue) logTakeOver(e *activity.Event) {
	count, warn := q.takeOvers.Note(e.Client, e.At)
	if !warn {
		return
	}
	q.logger.Warn("connections with one client id end each other again and again: two programs probably use the same client id",
		"client", logs.Name(e.Client), "user", logs.Name(e.User), "remote", e.Remote, "previous", e.Reason, "times", count,
		"hint", "give each program a client id of its own; if there is only one, its network loses connections without closing them")
}
