package transport

import (
	"errors"
	"io"
	"log/slog"
	"net/url"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
)

// withWill returns a connection whose next link is to carry a will.
func withWill() (*mqttConn, *pendingWill) {
	conn := newMQTTConn([]*url.URL{{Host: "192.0.2.1:1883"}}, Options{ClientOptions: ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	conn.will = &pendingWill{result: make(chan willResult, 1)}
	return conn, conn.will
}

func TestAWillThatCannotBeWrittenIsGivenUp(t *testing.T) {
	conn, will := withWill()
	why := errors.New("why")
	if err := conn.notConnected(will, will, why, nil, io.EOF); !errors.Is(err, why) || !errors.Is(err, ErrNoWill) {
		t.Errorf("%v, want ErrNoWill and why", err)
	}
	if s := await.Receive(will.result); !errors.Is(s.err, why) {
		t.Errorf("SetWill returns %v", s.err)
	}
	if conn.nextWill() != nil {
		t.Error("the next connection carries it, too")
	}
}

// The caller leaves at the moment in which the connection has the Will.
func TestAWillThatStandsIsNotGivenUp(t *testing.T) {
	conn, will := withWill()
	lost := make(chan struct{})
	conn.concluded(will, willResult{lost: lost})
	if s, known := conn.abandon(will); !known || s.lost != lost {
		t.Errorf("%+v, known: %t", s, known)
	}
	if conn.outdated(will) {
		t.Error("its connection is to be replaced")
	}
}

func TestAConnectionIsReplacedForAWillAndAfterItWasGivenUp(t *testing.T) {
	conn, will := withWill()
	if !conn.outdated(nil) {
		t.Error("a will waits, and the connection without is to stay")
	}
	if _, known := conn.abandon(will); known {
		t.Error("its result is known")
	}
	if !conn.outdated(will) {
		t.Error("the connection with the will is to stay")
	}
	if conn.outdated(nil) || conn.nextWill() != nil {
		t.Error("the next connection is to carry the will, too")
	}
	conn.concluded(will, willResult{})
	if len(will.result) != 0 {
		t.Error("no connection has it, and its result says so")
	}
	if len(conn.replace) != 1 {
		t.Error("serve is not woken up")
	}
}
