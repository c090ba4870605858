package fencing_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// timed is a connection that notes until when each request under a token may last. Over
// MQTT that becomes the message's expiry.
type timed struct {
	*transporttest.Conn
	left func(time.Duration)
}

func (c timed) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	if request.FencingToken != "" {
		deadline, _ := ctx.Deadline()
		c.left(time.Until(deadline))
	}
	return c.Conn.RoundTrip(ctx, request)
}

// A broker may keep a request for longer than its sender lives.
func TestInvariant21ARequestUnderATokenExpiresWithTheTenure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var longest time.Duration
		requests := 0
		conn := timed{transporttest.Start(t).Connect("node-a"), func(left time.Duration) {
			requests++
			longest = max(longest, left)
		}}
		client, err := transport.NewClient(conn, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		tenure := &lasting{token: hlc.Token{Wall: time.Now().UnixMilli(), Node: "StateStore"}, left: time.Second}
		for _, method := range methods {
			_ = method.call(t.Context(), fencing.NewGuard(client, tenure)) // some find nothing to delete
		}
		if requests == 0 || longest > tenure.left {
			t.Errorf("%d requests lasted for up to %v, and the tenure for %v", requests, longest, tenure.left)
		}
	})
}

// lasting is a tenure of which a certain time is always left.
type lasting struct {
	token hlc.Token
	left  time.Duration
}

var _ fencing.Tenure = (*lease.Tenure)(nil)

func (l *lasting) Token() (hlc.Token, error) { return l.token, nil }

func (l *lasting) Remaining() time.Duration { return l.left }

func (l *lasting) TokenContext() context.Context { return context.Background() }

func (l *lasting) FencedOut(error) {}

func (l *lasting) Name() string { return "lease" }

func (l *lasting) Bind(context.Context, *transport.Client) (transport.Binding, error) {
	return transport.Binding{}, nil
}
