// Package events passes what happens at a store on: to its observer, and to its log.
//
// Requests must not wait for either. So events are queued, in the order in which they happened, and a
// goroutine for each takes them. The queues have a bound: events beyond it are left out and counted.
package events

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// maxTakeOvers is how many client ids are watched for flapping.
	maxTakeOvers = 1024
	// patience is how long the end of a store waits for its observer and its log.
	patience = 5 * time.Second
)

// Queue is the queue of events of one store. Its methods are safe for concurrent use.
type Queue struct {
	observe func(activity.Event) // may be nil
	values  bool
	logger  *slog.Logger
	givenUp chan struct{} // closed when nothing waits for the observer and the log any more

	observed   *lane
	panics     *logs.Limiter
	unobserved *logs.Limiter

	logged    *lane
	unlogged  *logs.Limiter
	forced    *fairLimiter // of the goroutine of the log, like what follows
	ownForced *fairLimiter
	flaps     *fairLimiter
	takeOvers *activity.TakeOvers
}

// New returns the queue of a store. observe may be nil; values says whether events have values. Start
// must be called for the events to be taken.
func New(observe func(activity.Event), values bool, logger *slog.Logger) *Queue {
	return &Queue{
		observe: observe,
		values:  values,
		logger:  logger,
		givenUp: make(chan struct{}),

		observed:   newLane(),
		panics:     logs.NewLimiter(logger, slog.LevelError, "the observer of the store has panicked; it goes on with the next event"),
		unobserved: logs.NewLimiter(logger, slog.LevelWarn, "events were not observed: they came faster than the observer took them"),

		logged:   newLane(),
		unlogged: logs.NewLimiter(logger, slog.LevelWarn, "requests were not logged: they came faster than the log took them"),
		// The store sees a deletion with a reason, and does not know which client the holder is.
		forced:    newFairLimiter(logger, slog.LevelWarn, "a client says that it has taken a lease from its holder by force"),
		ownForced: newFairLimiter(logger, slog.LevelInfo, "a client has released its own lease, and says that it did so by force"),
		flaps: newFairLimiter(logger, slog.LevelWarn,
			"connections with one client id end each other again and again: two programs probably use the same client id"),
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
		Swap:      command.Condition == statestore.IfMissingOrEqual && !bytes.Equal(command.Expected, command.Value),
		Lifetime:  command.Lifetime,
		Stop:      command.Stop,
		Rank:      -1,
		Token:     command.HasToken(),
		Bound:     command.NamesStore(),
	}
	if clock, ok := command.Timestamp(); ok {
		e.HasClock, e.ClockOffset = true, time.UnixMilli(clock.Wall).Sub(now)
	}
	value := command.Value
	holder, hasNonce := protocol.HolderOf(value)
	if len(holder) < len(value) && strings.HasSuffix(command.Key, protocol.FailBackSuffix) {
		e.Rank = rankOf(value[len(holder)+1:])
	}
	switch id := len(command.Client); {
	case hasNonce:
		e.Holder = string(holder[:min(len(holder), activity.MaxText)])
	case len(value) >= id && string(value[:id]) == command.Client && (len(value) == id || value[id] == ':'):
		e.Holder = e.Client
	}
	if q.values {
		e.Value = string(value[:min(len(value), activity.MaxText)])
	}
	return e
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
	e.Outcome, e.Created, e.Version = reply.Outcome, reply.Created, reply.Version
	if reply.Err != nil {
		e.Refusal = activity.CutText(reply.Err.Error())
	}
	if e.Outcome != statestore.Deleted {
		e.Forced = "" // it has taken nothing; and any request can say that it does
	}
	if q.Wanted() || e.Forced != "" {
		q.Push(*e)
	}
}

// Push queues an event for the observer and the log. It does not block, and calls nothing but the logger's
// Enabled.
func (q *Queue) Push(e activity.Event) {
	rare := isRare(&e)
	if q.observe != nil {
		q.observed.push(e, rare)
	}
	if rare || e.Kind == activity.Request && q.logger.Enabled(context.Background(), slog.LevelDebug) {
		q.logged.push(e, rare)
	}
}

// isRare reports whether each log and each observer should have an event.
func isRare(e *activity.Event) bool { return e.Forced != "" || e.Kind == activity.TakenOver }

// Start begins to pass events on, in a goroutine for the observer and one for the log, so that an observer
// that hangs keeps nothing out of the log. It goes on until stop is called. stop returns when the events
// that are left were passed on and both goroutines have ended. If that takes more than five seconds, stop
// logs it and returns all the same; there are no further events then.
func (q *Queue) Start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	observed, logged := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(observed)
		q.runObserver(ctx)
	}()
	go func() {
		defer close(logged)
		q.runLog(ctx)
	}()
	return func() {
		cancel()
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-observed:
		case <-timer.C:
			close(q.givenUp)
			q.logger.Error("the observer of the store hangs, or is slower than the events came; the store ends, and the rest is not observed",
				"waited", patience)
			return
		}
		select {
		case <-logged:
		case <-timer.C:
			close(q.givenUp)
		}
	}
}

func (q *Queue) runObserver(ctx context.Context) {
	defer q.panics.Close()
	defer q.unobserved.Close()
	q.observed.run(ctx, q.givenUp, func(e *activity.Event) {
		if e.Lost > 0 {
			q.unobserved.Log("events", e.Lost)
		}
		q.call(e)
	})
}

func (q *Queue) runLog(ctx context.Context) {
	defer q.unlogged.Close()
	defer q.forced.close()
	defer q.ownForced.close()
	defer q.flaps.close()
	q.logged.run(ctx, q.givenUp, func(e *activity.Event) {
		if e.Lost > 0 {
			q.unlogged.Log("events", e.Lost)
		}
		q.log(e)
	})
}

// Started queues that the store answers from now on. continues says whether it has the data of an
// earlier one.
func (q *Queue) Started(continues bool) {
	if q.Wanted() {
		q.Push(activity.Event{Kind: activity.Started, At: time.Now(), Continues: continues})
	}
}

// Expired queues that the time of a key is over. It is short, because the engine calls it with its lock
// held.
func (q *Queue) Expired(key string) {
	q.Push(activity.Event{Kind: activity.Expired, At: time.Now(), Key: activity.CutKey(key)})
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
	if e.Forced != "" {
		limiter := q.forced
		if e.Holder != "" && e.Holder == e.Client {
			limiter = q.ownForced
		}
		limiter.log(e, "key", logs.Name(e.Key), "client", logs.Name(e.Client), "user", logs.Name(e.User), "remote", e.Remote,
			"reason", logs.Text(e.Forced), "verb", e.Verb.String(), "holder", logs.Name(e.Holder), "version", e.Version.String())
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
// often. A client can have any number of ids, so the lines have a bound besides.
func (q *Queue) logTakeOver(e *activity.Event) {
	count, warn := q.takeOvers.Note(e.User, e.Client, e.At)
	if !warn {
		return
	}
	q.flaps.log(e, "client", logs.Name(e.Client), "user", logs.Name(e.User), "remote", e.Remote, "previous", e.Reason, "times", count,
		"hint", "give each program a client id of its own; if there is only one, its network loses connections without closing them")
}
