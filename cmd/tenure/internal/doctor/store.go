package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport"
)

const (
	// farAhead is a timestamp that no store takes: its refusal tells its clock, and changes nothing.
	farAhead = 24 * time.Hour
	// maxSkew and offsetNoted are when an offset of the clocks is a failure and a warning.
	maxSkew     = time.Minute // docs/protocol.md §3.4
	offsetNoted = 5 * time.Second
	// delayedAck is how long Linux keeps an acknowledgement back [RFC 9293, 3.8.6.3].
	delayedAck = 40 * time.Millisecond
	aclCure    = "see the access rules in docs/attach.md; for tenure serve, see --auth"
)

// examineStore goes from an MQTT connection to the rights of the client.
// It reports whether a store answers.
func (d *doctor) examineStore(ctx context.Context, s *session) bool {
	if !d.find(ctx, s) {
		return false
	}
	defer d.tellClock(s)
	d.identify(ctx)
	d.compareClocks(ctx, s)
	d.measure(ctx, s)
	writes := d.examineWatch(ctx, s)
	if d.options.ReadOnly {
		d.add(skipped("write", "not tried, because of --read-only"))
	} else {
		d.examineWrites(ctx, s, writes)
	}
	d.examineOthers(ctx, s)
	return true
}

// find looks for a store.
func (d *doctor) find(ctx context.Context, s *session) bool {
	const name = "store"
	topic := protocol.ResponseTopic(d.options.Client.ClientID)
	if err := s.subscribe(ctx, topic); err != nil {
		if isRefusal(err) {
			return d.add(failed(Refused, name, fmt.Sprintf("the broker does not let this client subscribe to its replies (%s): %v", topic, err), "allow each client to read its own topics clients/{client id}/#: "+aclCure))
		}
		return d.add(failed(Unreachable, name, fmt.Sprintf("the broker did not answer a subscription: %v", err), "look at the broker's log"))
	}
	a, err := s.request(ctx, time.Time{}, protocol.VerbGet, d.key)
	d.report.Identity, d.report.Instance = a.store, a.instance
	switch {
	case err == nil || errors.Is(err, transport.ErrNotAuthorized) && !isRejected(err):
		return d.add(ok(name, "a store answers"))
	case errors.Is(err, transport.ErrNoStore):
		d.without = true
		return d.add(failed(Unreachable, name, "the broker works, and no store is subscribed to requests",
			fmt.Sprintf("start one beside this broker (tenure attach %s), or connect to the address of tenure serve", s.server)))
	case isRejected(err) && errors.Is(err, transport.ErrNotAuthorized):
		return d.add(failed(Refused, name, fmt.Sprintf("the broker does not let this client send requests (to %s): %v", protocol.InvokeTopic, err), "allow each client to write to that topic: "+aclCure))
	case isRejected(err) && errors.Is(err, transport.ErrServerBusy):
		return d.add(failed(Unreachable, name, fmt.Sprintf("the store is too busy: %v", err), "try again; look at the disk of the store"))
	case errors.Is(err, errSilence):
		cure := "either no store reads requests on this broker (tenure attach), or its rules drop the request or the reply without a word: " + aclCure
		if user := d.options.Client.Username; user != "" && user != d.options.Client.ClientID {
			cure += "; or the broker makes the user name the client id (mosquitto: use_username_as_clientid): give --client-id " + user +
				", but not while another process has it, because the broker would end that connection"
		}
		return d.add(failed(Unreachable, name, fmt.Sprintf("a request was taken, and no reply came within %v", d.options.Timeout), cure))
	case errors.Is(err, transport.ErrBadReply):
		return d.add(failed(Wrong, name, err.Error(), "another program answers requests on this broker: stop it"))
	}
	return d.add(failed(Unreachable, name, fmt.Sprintf("the request failed: %v", err), "look at the logs of the broker and of the store"))
}

// isRefusal reports whether a broker or a store has refused something.
func isRefusal(err error) bool {
	var refused *transport.RefusedError
	return isRejected(err) || errors.As(err, &refused)
}

// isRejected reports whether a broker, or a service before the store, has refused a request.
func isRejected(err error) bool {
	var rejected *transport.RejectedError
	return errors.As(err, &rejected)
}

// identify says which store it is.
func (d *doctor) identify(ctx context.Context) {
	found := "the store has no identity: it is not one of Tenure's, or an old one"
	if d.report.Identity != "" {
		found = "the data of the store is " + d.report.Identity
	}
	if d.report.Instance != "" {
		found += ", its process " + d.report.Instance + " (attached to the broker)"
	}
	if d.options.Mode == nil {
		d.add(ok("identity", found+"; it does not say over MQTT whether it keeps its data on disk (--admin asks its status page)"))
		return
	}
	ctx, cancel := d.step(ctx)
	defer cancel()
	mode, err := d.options.Mode(ctx)
	if err != nil {
		d.add(warning("identity", fmt.Sprintf("%s; its status page does not answer: %v", found, err), "check --admin"))
		return
	}
	d.add(ok("identity", found+"; "+mode))
}

// tellClock ends the requests with one that has the true clock, also when the context of Run has ended. The
// store reports the last clock of each client, and the examination sends others on purpose.
func (d *doctor) tellClock(s *session) {
	if !s.isOver() {
		_, _ = s.request(d.parting, d.options.Now(), protocol.VerbGet, d.key) // nothing depends on the answer
	}
}

// compareClocks finds out how far this machine's clock is from the store's.
func (d *doctor) compareClocks(ctx context.Context, s *session) {
	const name = "clock"
	set := []string{protocol.VerbSet, d.key, "clock", protocol.OptionPX, strconv.FormatInt(keyLives.Milliseconds(), 10)}
	a, err := s.request(ctx, d.options.Now().Add(farAhead), set...)
	if err == nil {
		d.forget(s)
		d.add(failed(Wrong, name, fmt.Sprintf("the store accepts a timestamp that is %v ahead of this machine's clock: one of the clocks is wrong, or the store does not check", farAhead), clockCure))
		return
	}
	if errors.Is(err, transport.ErrTimestampTooFarAhead) && a.version.IsZero() && !d.options.ReadOnly {
		// Other stores refuse without a word about their clock. The version of a value tells it.
		if a, err = s.request(ctx, d.options.Now().Add(-farAhead), set...); err == nil {
			d.forget(s)
		}
	}
	if a.version.IsZero() {
		d.add(skipped(name, fmt.Sprintf("the store does not tell its clock: %v", err)))
		return
	}
	// The wall clock of a version is cut to milliseconds.
	store := time.UnixMilli(a.version.Wall).Add(time.Millisecond / 2)
	ahead := a.began.Add(a.took / 2).Sub(store)
	d.report.ClockOffset = &output.Millis{Duration: ahead}
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	found := fmt.Sprintf("this machine's clock is %v %s the store's, give or take %v", ahead.Abs().Round(time.Millisecond), direction, (a.took/2 + time.Millisecond).Round(time.Millisecond))
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

const clockCure = "synchronize the clocks of both machines (chrony, systemd-timesyncd, w32time)"

// measure measures round trips.
func (d *doctor) measure(ctx context.Context, s *session) {
	const name = "round trip"
	times := make([]time.Duration, 0, roundTrips)
	for range roundTrips {
		a, err := s.request(ctx, time.Time{}, protocol.VerbGet, d.key)
		if err != nil && !errors.Is(err, transport.ErrNotAuthorized) {
			d.add(failed(Unreachable, name, fmt.Sprintf("request %d of %d was not answered: %v", len(times)+1, roundTrips, err), "the connection or the store is not reliable: look at the logs of both"))
			return
		}
		times = append(times, a.took)
	}
	slices.Sort(times)
	least, median, most := times[0], times[len(times)/2], times[len(times)-1]
	r := &RoundTrips{Count: len(times), Min: output.Millis{Duration: least}, Median: output.Millis{Duration: median}, Max: output.Millis{Duration: most}}
	d.report.RoundTrips = r
	found := fmt.Sprintf("%d GETs: min %s, median %s, max %s", r.Count, micros(least), micros(median), micros(most))
	if most > time.Second {
		d.add(warning(name, found, "a lease needs a TTL of many round trips: docs/embed.md says what a TTL means"))
		return
	}
	// The least of twenty is no accident: something on the way waits each time.
	if least > d.network+delayedAck*3/4 {
		d.add(warning(name, fmt.Sprintf("%s, and the network takes %s", found, micros(d.network)),
			"a broker that gathers small packets waits for the acknowledgement of the one before, about 40ms: set_tcp_nodelay true in mosquitto.conf; otherwise look at the load of the broker and of the store"))
		return
	}
	d.add(ok(name, found))
}

func micros(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// examineWatch tries whether the client may read and watch its key. It reports whether it is being
// notified.
func (d *doctor) examineWatch(ctx context.Context, s *session) bool {
	if _, err := s.request(ctx, time.Time{}, protocol.VerbGet, d.key); err != nil {
		d.add(d.rights("read", fmt.Sprintf("GET of %s", d.key), err))
	} else {
		d.add(ok("read", fmt.Sprintf("this client may read %s", d.key)))
	}
	const name = "watch"
	filter := protocol.NotifyFilter(d.options.Client.ClientID)
	if err := s.subscribe(ctx, filter); err != nil {
		d.add(d.rights(name, "a subscription to notifications ("+filter+")", err))
		return false
	}
	if _, err := s.request(ctx, time.Time{}, protocol.VerbKeyNotify, d.key); err != nil {
		d.add(d.rights(name, fmt.Sprintf("KEYNOTIFY of %s", d.key), err))
		return false
	}
	d.add(ok(name, fmt.Sprintf("this client may watch %s", d.key)))
	return true
}

// rights explains a request that failed although the store answers.
func (d *doctor) rights(name, what string, err error) Step {
	if errors.Is(err, transport.ErrNotAuthorized) || isRejected(err) {
		return failed(Refused, name, fmt.Sprintf("%s: %v", what, err), "give this client the right, or examine keys that it may use with --prefix; "+aclCure)
	}
	if isRefusal(err) {
		return failed(Refused, name, fmt.Sprintf("%s: %v", what, err), "examine other keys with --prefix, or look at the rules of the store (--lock-prefix, quotas)")
	}
	return failed(Unreachable, name, fmt.Sprintf("%s: %v", what, err), "look at the logs of the broker and of the store")
}

// examineWrites sets and deletes the doctor's key, and waits for the notification if it watches.
func (d *doctor) examineWrites(ctx context.Context, s *session, watched bool) {
	const name = "write"
	// A timestamp of long ago is one that each store takes, whatever the clocks are.
	past := d.options.Now().Add(-farAhead)
	value := "examined by " + d.options.Client.ClientID
	if _, err := s.request(ctx, past, protocol.VerbSet, d.key, value, protocol.OptionPX, strconv.FormatInt(keyLives.Milliseconds(), 10)); err != nil {
		d.add(d.rights(name, fmt.Sprintf("SET of %s", d.key), err))
		return
	}
	removed := false
	defer func() {
		if !removed {
			d.forget(s)
		}
	}()
	a, err := s.request(ctx, time.Time{}, protocol.VerbGet, d.key)
	if err == nil && (a.value.Kind != resp3.Bulk || string(a.value.Text) != value) {
		d.add(failed(Wrong, name, fmt.Sprintf("a value that was just set is not there: GET returned %q", a.value.Text), "two stores answer on this broker: stop one of them"))
		return
	}
	if _, err := s.request(ctx, past, protocol.VerbDel, d.key); err != nil {
		d.add(d.rights(name, fmt.Sprintf("DEL of %s", d.key), err))
		return
	}
	removed = true
	d.add(ok(name, fmt.Sprintf("this client may set and delete %s", d.key)))
	if watched {
		d.awaitNotification(ctx, s)
	}
}

// awaitNotification waits for the notification of a SET that was answered.
func (d *doctor) awaitNotification(ctx context.Context, s *session) {
	const name = "notification"
	wait := time.NewTimer(notificationTime)
	defer wait.Stop()
	topic := protocol.NotifyTopic(d.options.Client.ClientID, d.key)
	for {
		select {
		case message := <-s.notifications:
			if string(message.Topic) == topic {
				d.add(ok(name, "the store notifies this client of a change"))
				return
			}
			continue
		case <-s.ended:
		case <-wait.C:
		case <-ctx.Done():
		}
		d.add(failed(Refused, name, fmt.Sprintf("no notification of a change came within %v", notificationTime),
			"the broker must let this client read "+topic+", and the store write there; until then a standby notices only by asking, which takes longer. "+aclCure))
		return
	}
}

// forget deletes the doctor's key, also when the context of Run has ended.
func (d *doctor) forget(s *session) {
	_, _ = s.request(d.parting, d.options.Now().Add(-farAhead), protocol.VerbDel, d.key) // it expires by itself
}

// examineOthers looks whether the client may read the replies to another one, whose name is invented. A
// broker need not refuse the subscription: mosquitto takes each one, and looks at its rules when it
// delivers a message. So a message to that client tells, if this one may send it.
func (d *doctor) examineOthers(ctx context.Context, s *session) {
	const name = "isolation"
	topic := protocol.ResponseTopic("tenure-doctor-other-" + strings.ToLower(rand.Text()[:8]))
	switch err := s.subscribe(ctx, topic); {
	case isRejected(err):
		d.add(ok(name, "this client may not read replies for other clients"))
		return
	case err != nil:
		d.add(warning(name, fmt.Sprintf("a subscription was not answered: %v", err), "look at the broker's log"))
		return
	}
	defer s.unsubscribe(ctx, topic)
	if d.options.ReadOnly {
		d.add(skipped(name, "the broker takes a subscription to replies for other clients; whether it delivers them was not tried, because of --read-only"))
		return
	}
	switch d.send(ctx, s, topic) {
	case refusedToSend:
		d.add(skipped(name, "the broker takes a subscription to replies for other clients, and lets this client send none to try it; mosquitto takes each subscription, and delivers what its rules allow"))
	case wasTaken:
		d.add(warning(name, "the broker takes messages of this client to topics of other clients, so it can answer in place of the store; or it drops them and says that it took them, which cannot be told from here",
			"let clients write to their own topics only, and not to all of clients/#: "+aclCure))
	case cameBack:
		d.add(warning(name, "the broker lets this client read and write replies for other clients, so it can read their values, and answer in place of the store", "give the broker access rules: "+aclCure))
	}
}

// sent is what became of a message to a topic of another client.
type sent int

const (
	refusedToSend sent = iota // the broker refused it, or ended the connection
	wasTaken                  // the broker took it, and did not deliver it to this client, which has subscribed
	cameBack                  // the broker delivered it to this client
)

// send sends a message to a topic to which this client has subscribed, and waits for it.
func (d *doctor) send(ctx context.Context, s *session, topic string) sent {
	sending, cancel := d.step(ctx)
	defer cancel()
	if _, err := s.client.Publish(sending, &mqtt.Message{Topic: topic, Payload: []byte("tenure doctor")}); err != nil {
		return refusedToSend
	}
	wait := time.NewTimer(notificationTime)
	defer wait.Stop()
	for {
		select {
		case message := <-s.replies:
			if string(message.Topic) == topic {
				return cameBack
			}
		case <-s.ended:
			return refusedToSend // some brokers answer so to what is not allowed
		case <-wait.C:
			return wasTaken
		case <-ctx.Done():
			return refusedToSend // nothing is known
		}
	}
}
