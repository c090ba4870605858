// Package events notes what clients do at a store: for its status page, and for its log.
package events

import (
	"context"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// Log writes lines about requests and clients. Close ends it. It is safe for concurrent use.
type Log struct {
	logger                 *slog.Logger
	forced, flaps, changes *loglimit.Fair
	denied                 *loglimit.Lines
}

// NewLog returns a log that a logger writes.
func NewLog(logger *slog.Logger) *Log {
	return &Log{
		logger:  logger,
		denied:  loglimit.NewLines(logger, slog.LevelWarn, "refused a request"),
		forced:  loglimit.NewFair(logger, slog.LevelWarn, "a client has taken a lease from its holder by force"),
		changes: loglimit.NewFair(logger, slog.LevelInfo, "the holder of a lease has changed"),
		flaps: loglimit.NewFair(logger, slog.LevelWarn,
			"connections with one client id end each other again and again: two programs probably use the same client id"),
	}
}

// Answered writes the line of a request of a client with some address.
func (l *Log) Answered(command *statestore.Command, reply *statestore.Reply, remote string) {
	if f := reply.Forced; f != nil {
		l.forced.Log(command.Client, command.User, "key", logs.Name(command.Key), "client", logs.Name(command.Client),
			"user", logs.Name(command.User), "remote", remote, "reason", logs.Text(f.Forced),
			"verb", command.Verb.String(), "holder", logs.Name(f.From))
	}
	switch reply.Err {
	case protocol.NotAuthorized, protocol.LockRule, protocol.FencingTokenNeverIssued: // by rules
		l.denied.Log("client", logs.Name(command.Client), "user", logs.Name(command.User), "remote", remote,
			"verb", command.Verb.String(), "key", logs.Name(command.Key), "reason", reply.Err.Error())
	}
	if reply.Outcome == statestore.Expired || !l.logger.Enabled(context.Background(), slog.LevelDebug) {
		return // else the attributes would be allocated for nothing
	}
	attributes := []any{"verb", command.Verb.String(), "key", logs.Name(command.Key), "outcome", reply.Outcome.String()}
	if reply.Err != nil {
		attributes = append(attributes, "refusal", logs.Text(reply.Err.Error()))
	}
	attributes = append(attributes, "client", logs.Name(command.Client))
	if command.User != "" {
		attributes = append(attributes, "user", logs.Name(command.User))
	}
	if remote != "" {
		attributes = append(attributes, "remote", remote)
	}
	if command.Will {
		attributes = append(attributes, "will", true)
	}
	l.logger.Debug("request", attributes...)
}

// TakenOver warns of a client id that is taken over and back, the first time and then less and less
// often. A client can have any number of ids, so the lines have a bound besides.
func (l *Log) TakenOver(client *Client, id, user, remote, previous string) {
	if count, warn := client.TakenOver(); warn {
		l.flaps.Log(id, user, "client", logs.Name(id), "user", logs.Name(user), "remote", remote, "previous", previous,
			"times", count, "hint", "give each program a client id of its own; "+
				"if there is only one, its network loses connections without closing them")
	}
}

// followEvery is how often the changes of holders are read: most hand-overs are one line then.
const followEvery = time.Second

// Follow writes a line about each change of a holder, until ctx ends.
func (l *Log) Follow(ctx context.Context, store *engine.Engine) {
	for more := true; more; {
		more = sleep.For(ctx, followEvery)
		for _, n := range store.News() {
			l.changed(&n)
		}
	}
}

// changed writes the line of a change.
func (l *Log) changed(n *statestore.News) {
	attributes := []any{"lease", logs.Name(n.Name), "cause", string(n.Cause)}
	if n.From != "" {
		attributes = append(attributes, "from", logs.Name(n.From))
	}
	if n.To != "" {
		attributes = append(attributes, "to", logs.Name(n.To), "token", n.Token)
	}
	if n.From != "" && n.To != "" {
		attributes = append(attributes, "without_holder", time.Duration(n.GapMillis)*time.Millisecond)
	}
	l.changes.Log(n.Client, n.User, attributes...)
}

// Close writes the counts of the lines that were left out.
func (l *Log) Close() {
	l.forced.Close()
	l.flaps.Close()
	l.changes.Close()
	l.denied.Close()
}
