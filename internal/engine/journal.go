package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wake"
	"github.com/tenurelock/tenure/statestore"
)

// ErrStopped is why an engine with a journal no longer answers after Run has returned nil.
var ErrStopped = errors.New("the store has stopped")

// stopTimeout is how long the last commits may take after the context of Run has ended. A
// journal on a network may be cut off from it then.
const stopTimeout = 10 * time.Second

// Open returns an engine on the records of journal: it loads them, and makes the identity of
// the data and the bound of the versions durable. A nil journal means none: the engine keeps
// the store in memory.
//
// The engine calls deliver for each notification, one at a time, with its lock held, so that
// each client sees the changes of a key in the order of the store. So deliver must only queue
// the notification: it must not block and must not call the engine.
//
// Open sets options.Journaled. If options.Identity is empty, data without an identity gets a
// new one. The engine asks the journal for its standing with its lock held; the journal must
// not call the engine. It does not close the journal: its owner does, after Run has returned.
//
// The error says which option makes no sense, which record cannot be restored, or why the
// journal failed; it is the cause of ctx if that ended. Nothing was answered then.
func Open(ctx context.Context, options statestore.Options, journal statestore.Journal,
	deliver func(statestore.Notification)) (*Engine, error) {
	return OpenWithClock(ctx, options, journal, deliver, nil)
}

// OpenWithClock is Open on a machine with now as the system's clock, see SetSystemClock: the store
// begins with its time. Tests use it.
func OpenWithClock(ctx context.Context, options statestore.Options, journal statestore.Journal,
	deliver func(statestore.Notification), now func() time.Time) (*Engine, error) {
	options.Journaled = journal != nil
	if options.Identity == "" {
		options.Identity = NewIdentity()
	}
	store, err := statestore.New(options)
	if err != nil {
		return nil, err
	}
	e := &Engine{deliver: deliver, started: time.Now(), wake: make(chan struct{}, 1), store: store}
	e.life, e.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	e.SetSystemClock(now)
	e.do(func(statestore.Instant) {}) // the time of day begins
	if journal == nil {
		return e, nil
	}
	former, err := journal.Load(ctx, func(record statestore.Record) error {
		failpoint.Hit(failpoint.DuringLoad)
		return store.Restore(record)
	})
	if err != nil {
		return nil, fmt.Errorf("load the journal: %w", err)
	}
	var first statestore.Group
	e.do(func(now statestore.Instant) { first, err = store.Restored(now, former) })
	if err != nil {
		return nil, fmt.Errorf("load the journal: %w", err)
	}
	if len(first) > 0 {
		if err := journal.Commit(ctx, []statestore.Group{first}); err != nil {
			return nil, fmt.Errorf("commit the first batch: %w", err)
		}
	}
	store.Committed(store.Bound())
	e.journal = journal
	e.commit = make(chan struct{}, 1)
	e.freed = make(chan struct{})
	e.open = newBatch()
	wake.Up(e.commit) // to remove obsolete records, if there are any
	return e, nil
}

// Submit applies a command, and calls done, unless it is nil, when the reply may leave: at once, before
// Submit returns true for now, or after the commit of the changes that the reply shows, from the goroutine
// of Run, perhaps before Submit returns. If that commit fails, or Run has returned, done is never called.
// The reply that Submit returns with false tells the caller only how much space it needs, and may not leave.
//
// Like deliver, done is called with the lock held and must not block, and it comes before the notifications
// that the command causes. All calls for commands of the same key are in the store's order; without a
// journal, all calls are, and no other command is applied meanwhile.
//
// A caller that submits commands without waiting for their replies must call [Engine.AwaitCapacity] before, or
// bound by [Engine.Waiting] what it submits.
func (e *Engine) Submit(command statestore.Command, done func(statestore.Reply)) (reply statestore.Reply, now bool) {
	at := e.lock()
	defer e.unlock()
	return e.applyLocked(at, &command, done)
}

// TrySubmit applies a command, like Submit, if its reply may leave at once and leaves nothing to commit:
// the command writes no record, and no change of its key waits for a commit. So it needs no space.
// Otherwise TrySubmit changes nothing and reports false. Without a journal it applies every command.
func (e *Engine) TrySubmit(command statestore.Command) (reply statestore.Reply, ok bool) {
	now := e.lock()
	defer e.unlock()
	if e.journal != nil {
		if e.endsLocked() || e.dependencyLocked(&command, reply) != nil || e.store.MayWrite(now, &command) {
			return reply, false
		}
	}
	return e.applyLocked(now, &command, nil)
}

// HasCapacity reports whether AwaitCapacity returns at once, because not too much waits for a commit.
func (e *Engine) HasCapacity() bool { return e.journal == nil || e.waiting.Load() < maxWaiting }

// AwaitCapacity waits while too much waits for a commit. It returns an error when ctx ends or the
// engine answers nothing any more. The caller holds no lock that the functions which the
// engine calls may need. Without a journal it returns nil at once.
func (e *Engine) AwaitCapacity(ctx context.Context) error {
	for !e.HasCapacity() {
		e.mu.Lock()
		freed := e.freed // closed after e.waiting has fallen
		e.mu.Unlock()
		if e.HasCapacity() {
			break
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.life.Done():
			return fmt.Errorf("engine: no capacity: %w", context.Cause(e.life))
		}
	}
	return nil
}

// Waiting returns how many bytes wait for a commit, about: records, replies and notifications. AwaitCapacity
// makes its callers wait while these are more than 8 MiB.
func (e *Engine) Waiting() int64 { return e.waiting.Load() }

// applyLocked applies a command, see Submit.
func (e *Engine) applyLocked(
	now statestore.Instant, command *statestore.Command, done func(statestore.Reply),
) (statestore.Reply, bool) {
	if e.endsLocked() {
		return statestore.Reply{}, false
	}
	if e.journal != nil {
		e.store.SetFull(statestore.IsFull(e.journal))
	}
	reply, effects := e.store.Apply(now, *command)
	failpoint.Hit(failpoint.AfterApply)
	e.wakeExpiryLocked()
	h := pending{reply: reply, arrived: command.Arrived, notifications: effects.Notifications, done: done}
	if e.journal == nil {
		e.sendLocked(nil, &h)
		return reply, true
	}
	dependency := e.dependencyLocked(command, reply)
	if len(effects.Groups) > 0 {
		e.addLocked(effects.Groups, effects.Keys)
		dependency = e.open
	}
	if reply.Outcome == statestore.OK {
		// The bound of the versions moves while much of it is left, so no reply waits for it.
		e.addGroupLocked(e.store.Reserve(now))
	}
	if dependency != nil {
		e.addPendingLocked(dependency, h)
		return reply, false
	}
	// After the command was applied: if this process still has its standing now, no other one
	// had changed the store when the command read it.
	if !e.standsLocked() {
		return statestore.Reply{}, false
	}
	e.sendLocked(nil, &h)
	return reply, true
}

// dependencyLocked returns the batch on which the reply to a command without own records depends:
// the last one with something that the reply shows. It returns nil if all that is committed.
func (e *Engine) dependencyLocked(command *statestore.Command, reply statestore.Reply) *batch {
	// It depends on all keys. The quota of watches depends on none.
	all := command.Verb != statestore.VerbKeyNotify && errors.Is(reply.Err, protocol.QuotaExceeded)
	switch {
	case reply.Outcome == statestore.Expired: // shows nothing of the store
	case e.open.keys[command.Key] || all && len(e.open.groups) > 0:
		return e.open
	case e.committing != nil && (e.committing.keys[command.Key] || all):
		return e.committing
	}
	return nil
}

// standsLocked asks the journal whether this process may answer from memory. If not, the
// engine answers nothing any more: another process may.
func (e *Engine) standsLocked() bool {
	if err := e.journal.Standing(); err != nil {
		e.fail(fmt.Errorf("this process may no longer answer: %w", err))
		return false
	}
	return true
}

// addLocked adds groups that change keys to the open batch.
func (e *Engine) addLocked(groups []statestore.Group, keys []string) {
	for _, key := range keys {
		e.open.keys[key] = true
	}
	for _, group := range groups {
		e.addGroupLocked(group)
	}
}

// addGroupLocked adds a group, unless it is empty, to the open batch.
func (e *Engine) addGroupLocked(group statestore.Group) {
	if len(group) == 0 {
		return
	}
	e.open.groups = append(e.open.groups, group)
	size := sizeOf(group)
	e.open.size += size
	e.waiting.Add(size)
	wake.Up(e.commit)
}

// addPendingLocked keeps what leaves after the commit of b.
func (e *Engine) addPendingLocked(b *batch, h pending) {
	e.order++
	h.order, h.late = e.order, b == e.committing
	b.pending = append(b.pending, h)
	for i := range h.notifications {
		if client := h.notifications[i].Client; b.notified[client] == 0 {
			b.notified[client] = 0
		}
	}
	e.waiting.Add(h.size())
}

// forgetHeldLocked makes the notifications that wait for a commit not reach a client that has
// disconnected: its next connection watches nothing.
func (e *Engine) forgetHeldLocked(client string) {
	for _, b := range []*batch{e.open, e.committing} {
		if b == nil {
			continue
		}
		if _, notified := b.notified[client]; notified {
			b.notified[client] = e.order
		}
	}
}

// endsLocked reports whether the engine takes no more commands.
func (e *Engine) endsLocked() bool { return e.sealed || e.life.Err() != nil }

// Run removes keys as they expire, and commits what changed, until ctx ends. Without a journal
// it returns nil then. Without Run expired keys do not exist for requests either, but their
// watchers get no notification.
//
// With a journal, Run is called once. When ctx ends it takes no more commands, commits what
// was applied, with the exact clock as the bound of the versions, and returns nil. If a commit
// fails, or the journal has lost its standing, it returns an error with the reason: nothing of
// that batch or later was answered or notified, and nothing will be.
func (e *Engine) Run(ctx context.Context) error {
	commits, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	finished := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() { e.sealAndCancel(ctx, cancel, finished) })
	defer tasks.Wait()
	defer close(finished)
	if err := e.run(ctx, commits); err != nil {
		return fmt.Errorf("the journal failed, so the store has stopped; all that clients were told is kept: mend the "+
			"cause and start again: %w", err)
	}
	return nil
}

func (e *Engine) run(ctx, commits context.Context) error {
	timer := time.NewTimer(1)
	defer timer.Stop()
	for stopping := false; !stopping; {
		select {
		case <-e.wake:
		case <-timer.C:
		case <-e.commit:
		case <-ctx.Done():
			if stopping = true; e.journal == nil {
				return nil
			}
			e.seal()
		case <-e.life.Done():
			return context.Cause(e.life)
		}
		if wait, ok := e.expireSome(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		if e.journal == nil {
			continue
		}
		if err := e.commitOpen(commits); err != nil {
			return err
		}
	}
	e.do(func(statestore.Instant) { e.fail(ErrStopped) })
	return nil
}

// sealAndCancel seals the store when ctx ends, also during a commit, and cancels the commits
// stopTimeout later, unless finished is closed.
func (e *Engine) sealAndCancel(ctx context.Context, cancel context.CancelCauseFunc, finished chan struct{}) {
	defer cancel(nil)
	select {
	case <-finished:
		return
	case <-ctx.Done():
	}
	e.seal()
	select {
	case <-finished:
	case <-time.After(stopTimeout):
		cancel(fmt.Errorf("the last commit took longer than %v", stopTimeout))
	}
}

// seal makes the exact clock the bound of the versions, and refuses commands from now on:
// their versions would be above it.
func (e *Engine) seal() {
	e.do(func(statestore.Instant) {
		if e.journal != nil && !e.endsLocked() {
			e.addGroupLocked(e.store.Seal())
			e.sealed = true
		}
	})
}

// commitOpen commits the open batch, if there is anything in it, and lets leave what depends on it.
func (e *Engine) commitOpen(ctx context.Context) error {
	b := e.takeOpen()
	if b == nil {
		return context.Cause(e.life)
	}
	failpoint.Hit(failpoint.BeforeCommit)
	if err := e.journal.Commit(ctx, b.groups); err != nil {
		e.do(func(statestore.Instant) { e.fail(fmt.Errorf("commit: %w", err)) })
		return context.Cause(e.life)
	}
	failpoint.Hit(failpoint.AfterCommit)
	e.committed(b)
	for {
		// What comes from now on for a key of the batch is held too. It comes no faster than
		// clients send it, and must leave without a pause: otherwise the batch would never end, and
		// the next commit would never begin.
		burst, more, err := e.sendSome(b)
		if err != nil || !more {
			return err
		}
		if burst && e.pause != nil {
			e.pause()
		}
	}
}

// takeOpen begins the commit of the open batch: the groups that come now form the next one. It
// returns nil if there is nothing to commit, or the engine has failed.
func (e *Engine) takeOpen() *batch {
	e.mu.Lock()
	defer e.unlock()
	if e.life.Err() != nil {
		return nil
	}
	if !e.sealed { // the next store removes what is left
		for _, group := range e.store.RemoveObsolete(removeBatch + len(e.open.groups)) {
			e.addGroupLocked(group) // and so Run looks for more after this commit
		}
	}
	if len(e.open.groups) == 0 {
		return nil // and nothing is held
	}
	e.committing, e.open = e.open, newBatch()
	e.committing.bound = e.store.Bound()
	return e.committing
}

// committed notes that the journal has the groups of b. Its keys are kept until all that depends on
// it has left: a renewal that is answered at once must not overtake an earlier notification.
func (e *Engine) committed(b *batch) {
	e.mu.Lock()
	defer e.unlock()
	e.store.Committed(b.bound)
	b.groups, b.last = nil, e.order
	e.freeLocked(b.size)
}

// sendSome lets the next replies and notifications of b leave, and reports whether it was held when
// the commit ended. If nothing is left, it ends the batch and reports that there is no more.
//
// What was held before the commit began leaves without another look at the journal's standing: the
// commit is between the request and its reply, and proved that this process was the one that may
// answer. What was held later was read after that, perhaps when another process had taken over: a
// journal on a network has a batch before Commit returns.
func (e *Engine) sendSome(b *batch) (burst, more bool, err error) {
	e.mu.Lock()
	defer e.unlock()
	if e.life.Err() != nil {
		return false, false, context.Cause(e.life)
	}
	if len(b.pending) == 0 {
		e.committing = nil
		return false, false, nil
	}
	count, notifications := 0, 0
	for ; count < len(b.pending) && count+notifications < sendBatch; count++ {
		notifications += len(b.pending[count].notifications)
	}
	if b.pending[count-1].late && !e.standsLocked() {
		count = slices.IndexFunc(b.pending, func(h pending) bool { return h.late }) // what the commit proved still leaves
		if count == 0 {
			return false, false, context.Cause(e.life)
		}
	}
	leaving := b.pending[:count:count]
	b.pending = b.pending[count:]
	size := int64(0)
	for i := range leaving {
		e.sendLocked(b, &leaving[i])
		size += leaving[i].size()
	}
	burst = leaving[count-1].order <= b.last
	clear(leaving) // the batch lasts until all have left
	e.freeLocked(size)
	return burst, true, nil
}

// sendLocked lets what was held by a batch leave, or, without one, what was not held.
func (e *Engine) sendLocked(b *batch, h *pending) {
	if !h.expired {
		e.countLocked(h.reply, h.arrived)
	}
	if h.done != nil {
		failpoint.Hit(failpoint.BeforeReply)
		h.done(h.reply)
	}
	for _, notification := range h.notifications {
		if b == nil || h.order > b.notified[notification.Client] {
			failpoint.Hit(failpoint.BeforeNotification)
			e.deliver(notification)
		}
	}
}

// freeLocked notes that less waits for a commit.
func (e *Engine) freeLocked(size int64) {
	if left := e.waiting.Add(-size); left < maxWaiting && left+size >= maxWaiting {
		close(e.freed)
		e.freed = make(chan struct{})
	}
}
