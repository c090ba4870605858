package main

import (
	"context"
	"errors"

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
}}
