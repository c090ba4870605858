package attach_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// The broker would end the connection of a store that sends more than it takes, again and
// again, since the same request would come again.
func TestAReplyThatIsLargerThanTheBrokerTakesIsARefusal(t *testing.T) {
	const limit = 2048
	broker, a := begin(t, fmt.Sprintf("max_packet_size %d\n", limit), attach.Options{})
	p := testsupport.Connect(t, broker.Address, "node-a", nil)
	// What was asked for on a short way is answered on a long one.
	long := "clients/node-a/" + strings.Repeat("x", 800)
	p.Subscribe(long)
	refused := uint64(0)
	for size := 900; size < 1300; size += 7 {
		value := strings.Repeat("v", size)
		p.Do("SET", "k", value)
		request := p.Request("GET", "k")
		request.Properties.ResponseTopic = long
		p.SendMessage(request)
		reply := p.Next()
		switch got := string(reply.Payload); {
		case got == "-ERR the reply is larger than the broker takes\r\n":
			refused++
			reply.Payload = []byte(fmt.Sprintf("$%d\r\n%s\r\n", size, value))
			if would, _ := reply.Packet().WriteTo(io.Discard); would < limit-60 { // it has a version besides
				t.Errorf("a reply of %d bytes is refused", would)
			}
		case got != fmt.Sprintf("$%d\r\n%s\r\n", size, value) || refused > 0:
			t.Errorf("%d bytes: reply %.80q", size, got)
		}
	}
	if stats := a.Stats(); stats.Attachments != 1 || stats.Oversized != refused || refused == 0 {
		t.Errorf("%d were refused: %+v", refused, stats)
	}
}

func TestANotificationThatIsLargerThanTheBrokerTakesIsSkipped(t *testing.T) {
	broker, a := begin(t, "max_packet_size 4096\n", attach.Options{})
	p := testsupport.Connect(t, broker.Address, "node-a", nil)
	notificationsOf(p)
	long := strings.Repeat("k", 1400) // twice as long in the topic of its notifications
	for _, key := range []string{long, "k"} {
		p.Do("KEYNOTIFY", key)
		p.Do("SET", key, strings.Repeat("v", 1400))
	}
	if got := testsupport.NotifiedKey(t, "node-a", p.NextNotification().Topic); got != "k" {
		t.Errorf("notified of %.10q", got)
	}
	if stats := a.Stats(); stats.Attachments != 1 || stats.Oversized != 1 || stats.DroppedWatches != 0 {
		t.Errorf("%+v", stats)
	}
}
