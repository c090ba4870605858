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

func TestASocketGoesFromOneUserToTheNextWithoutALostConnection(t *testing.T) {
	const users, clients, rounds = 50, 4, 200
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	greeted := make(chan string, clients*rounds)
	var connecting sync.WaitGroup
	for range clients {
		connecting.Go(func() {
			for range rounds {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Errorf("the port is closed: %v", err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(await.Patience))
				var name string
				if _, err := fmt.Fscanln(conn, &name); err != nil {
					t.Errorf("no answer: %v", err)
				}
				_ = conn.Close()
				greeted <- name
			}
		})
	}
	present := l.Lend()
	ended := make(chan error, 1)
	go func() { ended <- greet(present, "0") }()
	for user := 1; user < users; user++ {
		for range clients * rounds / users / 2 {
			await.Receive(greeted)
		}
		next := l.Lend() // before the present one has ended
		_ = present.Close()
		_ = present.Close() // a server may do so twice
		if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("a user whose loan was returned got %v", err)
		}
		go func() { ended <- greet(next, fmt.Sprint(user)) }()
		present = next
	}
	await.Done(connecting.Wait)
	_ = l.Close()
	if err := await.Receive(ended); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the socket was closed: %v", err)
	}
}
