package standby

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func mustListen(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// greet accepts connections and sends each its name, until its loan is returned.
func greet(socket net.Listener, name string) error {
	for {
		conn, err := socket.Accept()
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(conn, name)
		_ = conn.Close()
	}
}

// greeting connects and returns the name that it gets.
func greeting(t *testing.T, l *Listener) string {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatalf("the port is closed: %v", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(await.Patience))
	var name string
	if _, err := fmt.Fscanln(conn, &name); err != nil {
		t.Fatalf("no answer: %v", err)
	}
	return name
}

func TestASocketGoesFromOneUserToTheNextWithoutALostConnection(t *testing.T) {
	const users, clients, rounds = 50, 4, 200
	l := mustListen(t)
	greeted := make(chan string, clients*rounds)
	var connecting sync.WaitGroup
	for range clients {
		connecting.Go(func() {
			for range rounds {
				greeted <- greeting(t, l)
			}
		})
	}
	present := l.Lend()
	ended := make(chan error, users)
	go func() { ended <- greet(present, "0") }()
	for user := 1; user < users; user++ {
		for range clients * rounds / users / 2 {
			await.Receive(greeted)
		}
		next := l.Lend()
		go func() { ended <- greet(next, fmt.Sprint(user)) }() // may begin before the present one has ended
		_ = present.Close()
		_ = present.Close() // a server may do so twice
		if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("a user whose loan was returned got %v", err)
		}
		present = next
	}
	await.Done(connecting.Wait)
	_ = present.Close()
	if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := present.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after it was returned: %v", err)
	}
}

func TestALoanThatWaitsLearnsThatTheSocketIsClosed(t *testing.T) {
	l := mustListen(t)
	ended := make(chan error, 1)
	go func() { ended <- greet(l.Lend(), "only") }()
	if got := greeting(t, l); got != "only" {
		t.Error(got)
	}
	_ = l.Close()
	if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestALoanThatWaitsForItsTurnCanBeReturned(t *testing.T) {
	l := mustListen(t)
	first, ended := l.Lend(), make(chan error, 2)
	go func() { ended <- greet(first, "first") }()
	if got := greeting(t, l); got != "first" {
		t.Error(got)
	}
	second := l.Lend()
	go func() { ended <- greet(second, "second") }()
	_ = second.Close()
	if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if got := greeting(t, l); got != "first" {
		t.Errorf("%s answers after the loan that waited was returned", got)
	}
	_ = first.Close()
	if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
