package testsupport

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
)

// PahoClient is an MQTT client without code of this repository: plain paho, and what it
// received. Its methods are for the goroutine of the test.
type PahoClient struct {
	T            testing.TB
	ID           string
	Conn         net.Conn
	Paho         *paho.Client
	Connack      *paho.Connack
	Received     chan *paho.Publish // all messages but notifications
	Notified     chan *paho.Publish // the notifications of the store
	disconnected chan *paho.Disconnect
	ReplyTo      string
	requests     int
}

// Connect returns a client that is subscribed to its response topic. change, which may be nil,
// alters the CONNECT.
func Connect(t testing.TB, address, id string, change func(*paho.Connect)) *PahoClient {
	t.Helper()
	p, err := TryConnect(t, address, id, change)
	if err != nil {
		t.Fatalf("connect %q: %v", id, err)
	}
	p.Subscribe(p.ReplyTo)
	return p
}

// TryConnect is Connect without the subscription. It returns the error of a refused CONNECT;
// the client then still has the CONNACK.
func TryConnect(t testing.TB, address, id string, change func(*paho.Connect)) (*PahoClient, error) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := &PahoClient{
		T:            t,
		ID:           id,
		Conn:         conn,
		Received:     make(chan *paho.Publish, 4096),
		Notified:     make(chan *paho.Publish, 4096),
		disconnected: make(chan *paho.Disconnect, 1),
		ReplyTo:      "clients/" + id + "/response",
	}
	p.Paho = paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
			if strings.HasPrefix(r.Packet.Topic, ReservedPrefix) {
				p.Notified <- r.Packet
			} else {
				p.Received <- r.Packet
			}
			return true, nil
		}},
		OnServerDisconnect: func(d *paho.Disconnect) { p.disconnected <- d },
	})
	connect := &paho.Connect{
		ClientID:   id,
		CleanStart: true,
		KeepAlive:  60,
		Properties: &paho.ConnectProperties{RequestProblemInfo: true},
	}
	if change != nil {
		change(connect)
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	p.Connack, err = p.Paho.Connect(ctx, connect)
	if err == nil {
		t.Cleanup(func() { _ = p.Paho.Disconnect(&paho.Disconnect{}) })
	}
	return p, err
}

// context ends with the connection, since the calls of paho v0.23.0 do not, and after Patience.
func (p *PahoClient) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	go func() {
		select {
		case <-p.Paho.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Subscribe subscribes with QoS 1, which must be granted.
func (p *PahoClient) Subscribe(topic string) {
	p.T.Helper()
	if code, err := p.TrySubscribe(topic); err != nil {
		p.T.Fatalf("%s: subscribe to %q: %v (code %#x)", p.ID, topic, err, code)
	}
}

// TrySubscribe subscribes with QoS 1 and returns the reason code.
func (p *PahoClient) TrySubscribe(topic string) (code byte, err error) {
	ctx, cancel := p.context()
	defer cancel()
	suback, err := p.Paho.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}})
	if suback != nil && len(suback.Reasons) == 1 {
		code = suback.Reasons[0]
	}
	return code, err
}

// Request returns a complete request to the store.
func (p *PahoClient) Request(words ...string) *paho.Publish {
	p.requests++
	publish := &paho.Publish{
		QoS:     1,
		Topic:   InvokeTopic,
		Payload: Command(words...),
		Properties: &paho.PublishProperties{
			ResponseTopic:   p.ReplyTo,
			CorrelationData: fmt.Appendf(nil, "%016d", p.requests),
		},
	}
	publish.Properties.User.Add("__ts", fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), p.ID)).Add("__protVer", "1.0")
	return publish
}

// Command encodes a command as RESP3, without package resp3.
func Command(words ...string) []byte {
	payload := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		payload = fmt.Appendf(payload, "$%d\r\n%s\r\n", len(word), word)
	}
	return payload
}

// Publish publishes a message and returns the PUBACK.
func (p *PahoClient) Publish(message *paho.Publish) (*paho.PublishResponse, error) {
	ctx, cancel := p.context()
	defer cancel()
	return p.Paho.Publish(ctx, message)
}

// SendMessage publishes a message that must be accepted.
func (p *PahoClient) SendMessage(message *paho.Publish) {
	p.T.Helper()
	if _, err := p.Publish(message); err != nil {
		p.T.Fatalf("%s: publish to %q: %v", p.ID, message.Topic, err)
	}
}

// Next returns the next message that is not a notification.
func (p *PahoClient) Next() *paho.Publish { return await.Receive(p.Received) }

// NextNotification returns the next notification that arrives.
func (p *PahoClient) NextNotification() *paho.Publish { return await.Receive(p.Notified) }

// Do sends a request and returns the payload of its reply, which must be the next
// message.
func (p *PahoClient) Do(words ...string) string {
	p.T.Helper()
	request := p.SendRequest(words...)
	reply := p.Next()
	if reply.Topic != p.ReplyTo || string(reply.Properties.CorrelationData) != string(request.Properties.CorrelationData) {
		p.T.Fatalf("%s: %q: got %v, want the reply", p.ID, words, reply)
	}
	return string(reply.Payload)
}

// SendRequest sends a request and waits for its PUBACK only.
func (p *PahoClient) SendRequest(words ...string) *paho.Publish {
	p.T.Helper()
	request := p.Request(words...)
	p.SendMessage(request)
	return request
}

// MustBeAnswered fails unless the next message is the reply to a request.
func (p *PahoClient) MustBeAnswered(request *paho.Publish, want string) {
	p.T.Helper()
	reply := p.Next()
	if got := string(reply.Properties.CorrelationData); got != string(request.Properties.CorrelationData) ||
		string(reply.Payload) != want {
		p.T.Errorf("%s: got %q to request %q, want %q to %q", p.ID, reply.Payload, got, want,
			request.Properties.CorrelationData)
	}
}

// MustGet fails unless a GET of key returns want; the empty string stands for a missing key.
func (p *PahoClient) MustGet(key, want string) {
	p.T.Helper()
	wanted := "$-1\r\n"
	if want != "" {
		wanted = fmt.Sprintf("$%d\r\n%s\r\n", len(want), want)
	}
	if got := p.Do("GET", key); got != wanted {
		p.T.Errorf("%q holds %q, want %q", key, got, wanted)
	}
}

// MustBeSilent sends a request and fails if anything arrived before its reply.
func (p *PahoClient) MustBeSilent() {
	p.T.Helper()
	p.Do("GET", "is anything before me?")
	if len(p.Notified) > 0 {
		p.T.Errorf("%s: got %v", p.ID, await.Receive(p.Notified))
	}
}

// MustBeGone waits for the end of the connection, with or without a reason.
func (p *PahoClient) MustBeGone() { await.Receive(p.Paho.Done()) }

// MustBeDisconnected waits for a DISCONNECT with this reason code and returns its reason string.
func (p *PahoClient) MustBeDisconnected(code byte) (reason string) {
	p.T.Helper()
	got := await.Receive(p.disconnected)
	if got.ReasonCode != code {
		p.T.Errorf("%s: disconnected with %#x, want %#x", p.ID, got.ReasonCode, code)
	}
	if got.Properties != nil {
		reason = got.Properties.ReasonString
	}
	return reason
}

// As makes a client connect with a user name and a password.
func As(user string) func(*paho.Connect) {
	return func(c *paho.Connect) {
		c.UsernameFlag, c.Username = true, user
		c.PasswordFlag, c.Password = true, []byte("secret")
	}
}

// KeepSession makes a client connect with a session that lasts ten minutes without a
// connection. clean is its Clean Start.
func KeepSession(clean bool) func(*paho.Connect) {
	keep := uint32(600)
	return func(c *paho.Connect) {
		c.CleanStart = clean
		c.Properties.SessionExpiryInterval = &keep
	}
}

// MustBeNotified fails unless the next notification reports this event.
func (p *PahoClient) MustBeNotified(event ...string) {
	p.T.Helper()
	if got, want := string(p.NextNotification().Payload),
		string(Command(append([]string{"NOTIFY"}, event...)...)); got != want {
		p.T.Errorf("%s: notified of %q, want %q", p.ID, got, want)
	}
}

// WatchKey connects a client that is notified about key.
func WatchKey(t *testing.T, address, key string) *PahoClient {
	t.Helper()
	p := Connect(t, address, "watcher", nil)
	if got := p.Do("KEYNOTIFY", key); got != "+OK\r\n" {
		t.Fatal(got)
	}
	return p
}
