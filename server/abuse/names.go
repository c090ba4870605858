package main

import (
	"context"
	"errors"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks on the names and topics of other clients.
var nameAttacks = []attack{{
	name:  "colliding client ids",
	what:  "logs in as \"p\", whose hex is the client id of another user, \"70\".",
	limit: "refused; \"70\" is still answered",
	users: true,
	run: func(ctx context.Context, t *target) {
		victim := t.must(ctx, rawmqtt.Login{ClientID: "70", User: healthyUser, Password: healthyPassword})
		t.accepted(victim.subscribe(1, protocol.ResponseTopic("70")))
		_, err := t.login(ctx, rawmqtt.Login{ClientID: "p"})
		if code, err := victim.ask(protocol.VerbGet, "key"); err != nil || refused(code) {
			t.breach("the request of the victim is refused with %#x, or its connection is lost: %v", code, err)
		}
		if !errors.Is(err, errRefused) {
			t.breach("the login is accepted (%v)", err)
		}
	},
}, {
	name:  "$share",
	what:  "joins a shared subscription to topics that it may not read, under several spellings.",
	limit: "refused; no message is lost",
	users: true,
	rules: "  - {users: [healthy], read: [\"*\"], write: [\"*\"], publish: [\"secret/*\"], subscribe: [\"secret/*\"]}\n" +
		"  - {users: [mallory], read: [\"open\"], subscribe: [\"open/*\"]}\n",
	run: func(ctx context.Context, t *target) {
		worker := t.must(ctx, rawmqtt.Login{ClientID: "worker", User: healthyUser, Password: healthyPassword})
		if code, err := worker.subscribe(0, "$share/workers/secret/#"); err != nil || refused(code) {
			t.accepted(worker.subscribe(0, "secret/#")) // where shared subscriptions are refused altogether
		}
		thief := t.as(ctx, "thief")
		granted := ""
		for _, filter := range []string{"$share/workers/secret/#", "$SHARE/workers/secret/#", "$Share/workers/+/jobs", "$share/workers/#", "$sHaRe/other/secret/jobs"} {
			code, err := thief.subscribe(0, filter)
			if err != nil {
				thief = t.as(ctx, "thief")
			} else if !refused(code) {
				granted += " " + filter
			}
		}
		publisher := t.must(ctx, rawmqtt.Login{ClientID: "publisher", User: healthyUser, Password: healthyPassword})
		const messages = 100
		for range messages {
			t.accepted(publisher.publish(rawmqtt.Message{Topic: "secret/jobs", Payload: []byte("job")}))
		}
		received := 0
		_ = worker.SetReadDeadline(time.Now().Add(time.Second))
		for received < messages {
			first, _, err := rawmqtt.Read(worker.in, maxRead)
			if err != nil {
				break
			}
			if first>>4 == packets.PUBLISH {
				received++
			}
		}
		if received < messages {
			t.breach("%d of %d messages are lost; granted:%s", messages-received, messages, granted)
		}
		if granted != "" {
			t.breach("granted:%s", granted)
		}
	},
}}
