package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/transport"
)

const (
	// roundTrips is how many GETs measure the round-trip time.
	roundTrips = 20
	// notificationTime is how long a notification may take after the reply.
	notificationTime = 2 * time.Second
	// keyLives is how long the doctor's key lives if it cannot be removed.
	keyLives = time.Minute
	// longAgo is how far the timestamps of the doctor are in the past: each store takes them, whatever the clocks
	// are, and the version that it gives is by its own clock alone.
	longAgo = 24 * time.Hour
	// maxSkew and offsetNoted are when an offset of the clocks is a failure and a warning.
	maxSkew     = time.Minute // docs/protocol.md §3.4
	offsetNoted = 5 * time.Second
	// delayedAck is how long Linux keeps an acknowledgement back [RFC 9293, 3.8.6.3].
	delayedAck = 40 * time.Millisecond
	aclCure    = "see the access rules in docs/attach.md; for tenure serve, see --auth"
	clockCure  = "synchronize the clocks of both machines (chrony, systemd-timesyncd, w32time)"
)

// examineStore goes from an MQTT connection to the rights of the client.
func (d *doctor) examineStore(ctx context.Context, client *transport.Client) {
	if !d.find(ctx, client) {
		return
	}
	d.identify()
	d.measure(ctx, client)
	watch := d.examineReads(ctx, client)
	if watch != nil {
		defer watch.Close()
	}
	if d.options.ReadOnly {
		d.add(skipped("write", "neither this nor the clock of the store was tried, because of --read-only"))
		return
	}
	d.examineWrites(ctx, client, watch)
}

// find looks for a store.
func (d *doctor) find(ctx context.Context, client *transport.Client) bool {
	const name = "store"
	step, cancel := d.step(ctx)
	defer cancel()
	_, err := client.Get(step, d.key)
	d.report.Identity, _ = client.Store()
	silent := errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil || errors.Is(err, transport.ErrNotAuthorized) && !isRejected(err):
		return d.add(ok(name, "a store answers"))
	case isRejected(err) && errors.Is(err, transport.ErrNotAuthorized):
		return d.add(failed(Refused, name,
			fmt.Sprintf("the broker does not let this client send requests (to %s): %v", protocol.InvokeTopic, err),
			"allow each client to write to that topic: "+aclCure))
	case errors.Is(err, transport.ErrServerBusy):
		return d.add(failed(Unreachable, name, fmt.Sprintf("the store is too busy: %v", err),
			"try again; look at the disk of the store"))
	case errors.Is(err, transport.ErrBadReply):
		return d.add(failed(Wrong, name, err.Error(), "another program answers requests on this broker: stop it"))
	case errors.Is(err, transport.ErrNoStore) && !silent:
		return d.add(failed(Unreachable, name, "the broker works, and no store is subscribed to requests",
			fmt.Sprintf("start one beside this broker (tenure attach %s), or connect to the address of tenure serve",
				client.Connection().Broker)))
	case silent:
		cure := "either no store reads requests on this broker (tenure attach), or its rules drop the request or the reply " +
			"without a word, for this client id perhaps (--client-id): " + aclCure
		return d.add(failed(Unreachable, name,
			fmt.Sprintf("a request was taken, and no reply came within %v", d.options.Timeout), cure))
	}
	return d.add(failed(Unreachable, name, fmt.Sprintf("the request failed: %v", err),
		"look at the logs of the broker and of the store"))
}

// isRejected reports whether a broker, or a service before the store, has refused a request.
func isRejected(err error) bool {
	var rejected *transport.RejectedError
	return errors.As(err, &rejected)
}

// identify says which store it is.
func (d *doctor) identify() {
	found := "the store has no identity: it is not one of Tenure's, or an old one"
	if d.report.Identity != "" {
		found = "the data of the store is " + d.report.Identity
	}
	d.add(ok("identity", found+"; whether it keeps its data on disk, its log and its status page say"))
}

// measure measures round trips.
func (d *doctor) measure(ctx context.Context, client *transport.Client) {
	const name = "round trip"
	times := make([]time.Duration, 0, roundTrips)
	for range roundTrips {
		step, cancel := d.step(ctx)
		began := time.Now()
		_, err := client.Get(step, d.key)
		cancel()
		if err != nil && !errors.Is(err, transport.ErrNotAuthorized) {
			d.add(failed(Unreachable, name, fmt.Sprintf("request %d of %d was not answered: %v", len(times)+1, roundTrips, err),
				"the connection or the store is not reliable: look at the logs of both"))
			return
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	least, median, most := times[0], times[len(times)/2], times[len(times)-1]
	found := fmt.Sprintf("%d GETs: min %v, median %v, max %v", len(times), rounded(least), rounded(median), rounded(most))
	switch {
	case most > time.Second:
		d.add(warning(name, found, "a lease needs a TTL of many round trips: docs/embed.md says what a TTL means"))
	case least > d.network+delayedAck*3/4: // the least of twenty is no accident: something on the way waits each time
		d.add(warning(name, fmt.Sprintf("%s, and the network takes %v", found, rounded(d.network)),
			"a broker that gathers small packets waits for the acknowledgement of the one before, about 40ms: set_tcp_nodelay "+
				"true in mosquitto.conf; otherwise look at the load of the broker and of the store"))
	default:
		d.add(ok(name, found))
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Microsecond) }

// examineReads tries whether the client may read and watch its key. It returns the watch; nil: it may not.
func (d *doctor) examineReads(ctx context.Context, client *transport.Client) *transport.Watch {
	step, cancel := d.step(ctx)
	defer cancel()
	if _, err := client.Get(step, d.key); err != nil {
		d.add(d.rights("read", "GET of "+d.key, err))
	} else {
		d.add(ok("read", "this client may read "+d.key))
	}
	watch, err := client.Watch(d.key)
	if err == nil {
		select {
		case _, open := <-watch.Changes():
			if open {
				d.add(ok("watch", "this client may watch "+d.key))
				return watch
			}
			err = watch.Err()
		case <-step.Done():
			err = step.Err()
			watch.Close()
		}
	}
	d.add(d.rights("watch", "KEYNOTIFY of "+d.key, err))
	return nil
}

// rights explains a request that failed although the store answers.
func (d *doctor) rights(name, what string, err error) Step {
	var refused *transport.RefusedError
	found := fmt.Sprintf("%s: %v", what, err)
	switch {
	case errors.Is(err, transport.ErrNotAuthorized), isRejected(err):
		return failed(Refused, name, found,
			"give this client the right, or examine keys that it may use with --prefix; "+aclCure)
	case errors.As(err, &refused):
		return failed(Refused, name, found,
			"examine other keys with --prefix, or look at the rules of the store (--lock-prefix, quotas)")
	}
	return failed(Unreachable, name, found, "look at the logs of the broker and of the store")
}

// examineWrites sets and deletes the doctor's key, compares the clocks by the version of the value, and waits for
// the notification if there is a watch. Its last SET has the true clock: the store reports the last clock of each
// client.
func (d *doctor) examineWrites(ctx context.Context, client *transport.Client, watch *transport.Watch) {
	const name = "write"
	defer func() {
		d.behind.Store(0)
		parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		defer cancel()
		_, _ = client.Set(parting, d.key, nil, transport.SetOptions{TTL: keyLives})
		_, _ = client.Del(parting, d.key, transport.DelOptions{}) // otherwise it expires
	}()
	d.behind.Store(int64(longAgo))
	step, cancel := d.step(ctx)
	defer cancel()
	value, began, sent := "examined by "+client.ClientID(), d.options.Now(), time.Now()
	version, err := client.Set(step, d.key, []byte(value), transport.SetOptions{TTL: keyLives})
	if err != nil {
		d.add(d.rights(name, "SET of "+d.key, err))
		return
	}
	took := time.Since(sent)
	entry, err := client.Get(step, d.key)
	if err == nil && string(entry.Value) != value {
		d.add(failed(Wrong, name, fmt.Sprintf("a value that was just set is not there: GET returned %q", entry.Value),
			"two stores answer on this broker: stop one of them"))
		return
	}
	if _, err := client.Del(step, d.key, transport.DelOptions{}); err != nil {
		d.add(d.rights(name, "DEL of "+d.key, err))
		return
	}
	d.add(ok(name, "this client may set and delete "+d.key))
	d.compareClocks(version, began, took)
	if watch != nil {
		d.awaitNotification(ctx, watch)
	}
}

// compareClocks finds out how far this machine's clock is from the store's, by the version of a value that was
// set at a time by the former.
func (d *doctor) compareClocks(version hlc.Timestamp, began time.Time, took time.Duration) {
	const name = "clock"
	if version.IsZero() {
		d.add(skipped(name, "the store does not tell its clock"))
		return
	}
	// The wall clock of a version is cut to milliseconds.
	ahead := began.Add(took / 2).Sub(time.UnixMilli(version.Wall).Add(time.Millisecond / 2))
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	found := fmt.Sprintf("this machine's clock is %v %s the store's, give or take %v",
		ahead.Abs().Round(time.Millisecond), direction, (took/2 + time.Millisecond).Round(time.Millisecond))
	switch {
	case ahead > maxSkew:
		d.add(failed(Wrong, name, found+"; the store refuses timestamps that are more than a minute ahead", clockCure))
	case ahead < -maxSkew:
		d.add(failed(Wrong, name, found+"; a client distrusts a store that is more than a minute ahead", clockCure))
	case ahead.Abs() > offsetNoted:
		d.add(warning(name, found, clockCure))
	default:
		d.add(ok(name, found))
	}
}

// awaitNotification waits for the notification of a SET or a DEL that was answered.
func (d *doctor) awaitNotification(ctx context.Context, watch *transport.Watch) {
	const name = "notification"
	wait := time.NewTimer(notificationTime)
	defer wait.Stop()
	select {
	case _, open := <-watch.Changes():
		if open {
			d.add(ok(name, "the store notifies this client of a change"))
			return
		}
	case <-wait.C:
	case <-ctx.Done():
	}
	d.add(failed(Refused, name, fmt.Sprintf("no notification of a change came within %v", notificationTime),
		"the broker must let this client read "+protocol.NotifyTopic(d.options.Client.ClientID, d.key)+
			", and the store write there; until then a standby notices only by asking, which takes longer. "+aclCure))
}
