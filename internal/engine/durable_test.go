package engine

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// A durable is an engine on a disk, in a bubble, and what has left it.
type durable struct {
	t       *testing.T
	disk    *disk
	engine  *Engine
	started time.Time
	stop    context.CancelFunc
	ended   chan error
	result  error // of Run, once ended

	mu   sync.Mutex
	left []string
}

// open opens the engine, whose journal may be nil or a disk, and runs it.
func open(t *testing.T, journal statestore.Journal, options statestore.Options) *durable {
	t.Helper()
	d := &durable{t: t, started: time.Now(), ended: make(chan error, 1)}
	d.disk, _ = journal.(*disk)
	engine, err := Open(t.Context(), options, journal, func(n statestore.Notification) {
		if n.Deleted {
			d.leave(n.Client, " hears ", n.Key, " deleted")
		} else {
			d.leave(n.Client, " hears ", n.Key, "=", n.Value)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	engine.Begin()
	d.engine = engine
	ctx, stop := context.WithCancel(t.Context())
	d.stop = stop
	go func() { d.ended <- engine.Run(ctx) }()
	return d
}

// close stops the engine and returns the error of Run. A second call does nothing.
func (d *durable) close() error {
	d.stop()
	if d.ended != nil {
		d.result = await.Receive(d.ended)
		d.ended = nil
	}
	return d.result
}

func (d *durable) leave(text ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = append(d.left, strings.Join(text, ""))
}

// want compares what has left since the last call.
func (d *durable) want(want ...string) {
	d.t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.left, want) {
		d.t.Errorf("what left:\n\t%s\nwant:\n\t%s", strings.Join(d.left, "\n\t"), strings.Join(want, "\n\t"))
	}
	d.left = nil
}

// submit sends a command. Its reply is added, after the label, to what leaves.
func (d *durable) submit(label string, words ...string) {
	d.submitNow(label, words...)
	synctest.Wait()
}

// submitNow is submit for a caller that must not wait.
func (d *durable) submitNow(label string, words ...string) {
	d.engine.Submit(parse("c", words), func(reply statestore.Reply) { d.leave(label, ": ", text(reply)) })
}

// apply sends a command of a client and waits for the reply.
func (d *durable) apply(client string, words ...string) statestore.Reply {
	d.t.Helper()
	reply, err := d.engine.Apply(parse(client, words))
	if err != nil {
		d.t.Errorf("%q: %v", words, err)
	}
	return reply
}

// hold makes commits wait for commit and fail.
func (d *durable) hold() { d.disk.set(func(k *disk) { k.held = true }) }

// commit lets the commit that is under way pass.
func (d *durable) commit() {
	synctest.Wait()
	d.disk.verdicts <- verdict{}
	synctest.Wait()
}

// release lets all commits pass from now on.
func (d *durable) release() {
	d.disk.set(func(k *disk) { k.held = false })
	synctest.Wait()
	select {
	case d.disk.verdicts <- verdict{}:
	default:
	}
	synctest.Wait()
}

// fail lets the commit that is under way fail after some groups.
func (d *durable) fail(keep int) {
	synctest.Wait()
	d.disk.verdicts <- verdict{keep, errDisk}
	synctest.Wait()
}

// parse returns the command of a client. Words with a tilde are properties of the request:
// token~5, correlation~x, store~identity, ahead~2m (how far the timestamp is ahead).
func parse(client string, words []string) statestore.Command {
	request := statestore.Request{Client: client}
	stamp := time.Now()
	words = slices.DeleteFunc(slices.Clone(words), func(word string) bool {
		option, value, found := strings.Cut(word, "~")
		if !found {
			return false
		}
		switch option {
		case "token":
			wall, _ := strconv.ParseInt(value, 10, 64)
			token := hlc.Timestamp{Wall: wall, Node: "n"}.String()
			request.FencingToken = &token
		case "correlation":
			request.Correlation, request.Delivery = []byte(value), statestore.Redelivery
		case "store":
			request.Store = &value
		case "ahead":
			ahead, _ := time.ParseDuration(value)
			stamp = stamp.Add(ahead)
		}
		return true
	})
	ts := hlc.Timestamp{Wall: stamp.UnixMilli(), Node: client}.String()
	request.Payload, request.Timestamp = resp3.AppendCommand(nil, words...), &ts
	return statestore.Parse(request)
}

// text shows a reply without its version, which a test cannot know.
func text(reply statestore.Reply) string {
	refusals := map[error]string{
		protocol.FencingTokenLower:    "lower token",
		protocol.QuotaExceeded:        "over quota",
		protocol.TimestampTooFarAhead: "timestamp ahead",
		protocol.OtherStore:           "other store",
	}
	switch {
	case reply.Err != nil:
		return cmp.Or(refusals[reply.Err], reply.Err.Error())
	case reply.Outcome == statestore.Found:
		return reply.Value
	}
	return reply.Outcome.String()
}

// wait lets virtual time pass, and all goroutines run.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
