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
	run: func(ctx context.Context, t *target) error {
		victim, err := t.login(ctx, rawmqtt.Login{ClientID: "70", User: healthyUser, Password: healthyPassword})
		if err != nil {
			return err
		}
		if _, err := victim.subscribe(1, protocol.ResponseTopic("70")); err != nil {
			return err
		}
		_, err = t.login(ctx, rawmqtt.Login{ClientID: "p"})
		if err := victim.send(victim.request(1, protocol.VerbGet, "key")); err != nil {
			return breach("the victim lost its connection: %v", err)
		}
		if code, answer := victim.acknowledged(); answer != nil || refused(code) {
			return breach("the request of the victim is refused with %#x, %v", code, answer)
		}
		if !errors.Is(err, errRefused) {
			return breach("the login is accepted (%v)", err)
		}
		return nil
	},
}, {
	name:  "$share",
	what:  "joins a shared subscription to topics that it may not read, under several spellings.",
	limit: "refused; no message is lost",
	users: true,
	rules: "  - {users: [healthy], read: [\"*\"], write: [\"*\"], publish: [\"secret/*\"], subscribe: [\"secret/*\"]}\n" +
		"  - {users: [mallory], read: [\"open\"], subscribe: [\"open/*\"]}\n",
	run: func(ctx context.Context, t *target) error {
		worker, err := t.login(ctx, rawmqtt.Login{ClientID: "worker", User: healthyUser, Password: healthyPassword})
		if err != nil {
			return err
		}
		shared := "$share/workers/secret/#"
		if code, err := worker.subscribe(0, shared); err != nil {
			return err
		} else if refused(code) {
			shared = "secret/#" // shared subscriptions are refused altogether
			if code, err := worker.subscribe(0, shared); err != nil || refused(code) {
				return errors.Join(err, errors.New("the worker may not subscribe"))
			}
		}
		thief, err := t.login(ctx, rawmqtt.Login{ClientID: "thief"})
		if err != nil {
			return err
		}
		granted := ""
		for _, filter := range []string{"$share/workers/secret/#", "$SHARE/workers/secret/#", "$Share/workers/+/jobs", "$share/workers/#", "$sHaRe/other/secret/jobs"} {
			code, err := thief.subscribe(0, filter)
			switch {
			case err != nil:
				if thief, err = t.login(ctx, rawmqtt.Login{ClientID: "thief"}); err != nil {
					return err
				}
			case !refused(code):
				granted += " " + filter
			}
		}
		publisher, err := t.login(ctx, rawmqtt.Login{ClientID: "publisher", User: healthyUser, Password: healthyPassword})
		if err != nil {
			return err
		}
		const messages = 100
		for range messages {
			if code, err := publisher.publish(rawmqtt.Message{Topic: "secret/jobs", Payload: []byte("job")}); err != nil || refused(code) {
				return errors.Join(err, errors.New("the publisher may not publish"))
			}
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
			return breach("%d of %d messages are lost; granted:%s", messages-received, messages, granted)
		}
		if granted != "" {
			return breach("granted:%s", granted)
		}
		return nil
	},
}}
