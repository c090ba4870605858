package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// sdk is how an SDK of Azure IoT Operations writes the packets of a lock, byte for byte: from the sources of the SDKs
// and of their MQTT libraries. In topics %[1]X is the client id in hexadecimal, and %[1]s as it is.
type sdk struct {
	name      string
	reply     string   // the response topic
	subscribe string   // for notifications; the SDK for Go does not subscribe
	order     string   // of the properties of a request
	user      []string // its user properties, in order; the SDK for Go has them in a map
}

var sdks = []sdk{
	{
		name:  "go",
		reply: "clients/%[1]X/" + testsupport.InvokeTopic + "/response",
		order: "format expiry type topic correlation user",
		user:  []string{"__srcId", "__ts", "__protVer", "$partition"},
	},
	{
		name:  "dotnet",
		reply: "clients/%[1]s/" + testsupport.InvokeTopic,
		// The store never publishes there, but the SDK gives up unless QoS 1 is granted.
		subscribe: testsupport.ReservedPrefix + "/%[1]s/command/notify",
		order:     "type correlation expiry topic user",
		user:      []string{"__protVer", "$partition", "__srcId", "__ts"},
	},
	{
		name:      "rust",
		reply:     "clients/%[1]s/services/" + testsupport.InvokeTopic + "/response",
		subscribe: testsupport.ReservedPrefix + "/%[1]X/command/notify/+",
		order:     "format expiry topic correlation user type",
		user:      []string{"__srcId", "__ts", "__protVer", "$partition"},
	},
}

// sdkLock is a lock of a client of an SDK.
type sdkLock struct {
	*testsupport.RawClient
	sdk
	key      string
	notified []string // payloads
}

func (s sdk) connect(t *testing.T, address, key string) *sdkLock {
	t.Helper()
	client := testsupport.ConnectPacket{ID: s.name + "-client", Expiry: 3600}.Connect(t, address)
	client.ReplyTo = fmt.Sprintf(s.reply, client.ID)
	client.Subscribe(client.ReplyTo)
	if s.subscribe != "" {
		if codes := client.Filter(1, fmt.Sprintf(s.subscribe, client.ID)); codes[0] != 1 {
			t.Fatalf("%s: SUBACK %x for its notifications", s.name, codes)
		}
	}
	return &sdkLock{RawClient: client, sdk: s, key: key}
}

// must sends a request, fails unless want is the reply, and returns the version of that. An SDK refuses a reply
// without a status, or with correlation data that is no UUID; the one for .NET wants a version for each SET.
func (l *sdkLock) must(want string, words ...string) (version hlc.Token) {
	l.T.Helper()
	l.ExtendDeadline()
	l.Sent++
	values := map[string]string{
		"__srcId": l.ID, "$partition": l.ID, "__protVer": "1.0",
		"__ts": fmt.Sprintf("%015d:00000:0193bd2c-0000-7000-8000-000000000001", time.Now().UnixMilli()),
	}
	var user, properties rawmqtt.Body
	for _, name := range l.user {
		user = user.User(name, values[name])
	}
	correlation := fmt.Sprintf("%016d", l.Sent)
	for _, name := range strings.Fields(l.order) {
		properties = append(properties, map[string]rawmqtt.Body{
			"format":      {packets.PropPayloadFormat, 0},
			"expiry":      rawmqtt.Body{packets.PropMessageExpiry}.Uint32(10),
			"type":        rawmqtt.Body{packets.PropContentType}.Text("application/octet-stream"),
			"topic":       rawmqtt.Body{packets.PropResponseTopic}.Text(l.ReplyTo),
			"correlation": rawmqtt.Body{packets.PropCorrelationData}.Text(correlation),
			"user":        user,
		}[name]...)
	}
	request := rawmqtt.Message{Topic: testsupport.InvokeTopic, QoS: 1, ID: l.Sent, Properties: properties}
	request.Payload = testsupport.Command(words...)
	l.Send(request)
	var reply mqtt.Publish
	for acknowledged := false; !acknowledged || reply.Topic == nil; {
		if message := l.read(); message == nil {
			acknowledged = true
		} else if !strings.HasPrefix(string(message.Topic), testsupport.ReservedPrefix) {
			reply = *message
		}
	}
	values = make(map[string]string)
	for name, value := range reply.Users {
		values[string(name)] = string(value)
	}
	version, err := hlc.ParseToken(values["__ts"])
	if string(reply.Payload) != want || string(reply.Topic) != l.ReplyTo || string(reply.CorrelationData) != correlation ||
		string(reply.ContentType) != "application/octet-stream" || values["__stat"] != "200" || values["__protVer"] != "1.0" ||
		err != nil && words[0] == "SET" && want[0] != '-' {
		l.T.Fatalf("%s: %q is answered with %q, %v, want %q: %+v", l.ID, words, reply.Payload, values, want, reply)
	}
	return version
}

// read returns the next message, or nil for a PUBACK.
func (l *sdkLock) read() *mqtt.Publish {
	l.T.Helper()
	packet := l.Read()
	if _, isAck := testsupport.ParsePuback(packet); isAck {
		return nil
	}
	message, isMessage := testsupport.ParsePublish(packet)
	if !isMessage {
		l.T.Fatalf("%s: got %x", l.ID, packet)
	}
	if strings.HasPrefix(string(message.Topic), testsupport.ReservedPrefix) {
		want := fmt.Sprintf("%s/%X/command/notify/%X", testsupport.ReservedPrefix, l.ID, l.key)
		if _, hasVersion := message.User("__ts"); string(message.Topic) != want || !hasVersion {
			l.T.Errorf("%s: notified with %+v, want one on %s", l.ID, message, want)
		}
		l.notified = append(l.notified, string(message.Payload))
	}
	return &message
}

// set makes an attempt to acquire the lock, or to renew it.
func (l *sdkLock) set(want string) hlc.Token {
	l.T.Helper()
	return l.must(want, "SET", l.key, l.ID, "NEX", "PX", fmt.Sprint(mixedOptions.TTL.Milliseconds()))
}

// takeOver waits until the store says that the key is gone, as the SDKs do, and acquires the lock.
func (l *sdkLock) takeOver() hlc.Token {
	l.T.Helper()
	for l.ExtendDeadline(); !slices.Contains(l.notified, string(testsupport.Command("NOTIFY", "DELETE"))); {
		l.read()
	}
	l.notified = nil
	return l.set(granted)
}

const granted, held = "+OK\r\n", ":-1\r\n"

var mixedOptions = lease.Options{TTL: 2 * time.Second}

// Invariants 1 and 2, between other holders and ours: a lock of an SDK and a lease wait for each other. When the
// holder is killed the other takes over, with a greater token.
func TestALockOfAnSDKAndALeaseTakeOverFromEachOther(t *testing.T) {
	t.Parallel()
	address := testsupport.Start(t, server.Options{})
	for _, s := range sdks {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			key := "press-7/" + s.name
			var last hlc.Token
			hold := func(token hlc.Token) {
				t.Helper()
				if token.Compare(last) <= 0 {
					t.Errorf("the token %v was granted after %v", token, last)
				}
				last = token
			}

			first := s.connect(t, address, key)
			first.must("-ERR wrong number of arguments\r\n", "SET", key)
			hold(first.set(granted))
			through := testsupport.NewProxy(t, address)
			acquired := make(chan *lease.Tenure, 1)
			client := testsupport.Dial(t, through.Address(), transport.Options{ClientID: s.name + "-ours"})
			go func() { acquired <- acquire(t, client, key, mixedOptions) }()
			var renewed time.Time
			for range 3 {
				time.Sleep(mixedOptions.TTL / 2)
				renewed = time.Now()
				hold(first.set(granted))
			}
			first.Reset() // without a DISCONNECT
			tenure := await.Receive(acquired)
			if took := time.Since(renewed); took < mixedOptions.TTL {
				t.Errorf("the lease is acquired %v after a renewal of the lock", took)
			}
			token, err := tenure.Token()
			if err != nil {
				t.Fatal(err)
			}
			hold(token)

			second := s.connect(t, address, key)
			second.must(granted, "KEYNOTIFY", key)
			second.set(held)
			time.Sleep(mixedOptions.TTL)
			second.set(held) // the lease was renewed
			second.must(held, "VDEL", key, second.ID)
			through.Refuse(true)
			through.Cut()
			hold(second.takeOver())
			if token, err := tenure.Token(); err == nil {
				t.Errorf("while the lock is held the lease has the token %v", token)
			}

			second.must(":1\r\n", "VDEL", key, second.ID)
			instant := mixedOptions
			instant.InstantFailover = true
			through.Refuse(false)
			third := testsupport.Dial(t, through.Address(), transport.Options{ClientID: s.name + "-instant"})
			if token, err = acquire(t, third, key, instant).Token(); err != nil {
				t.Fatal(err)
			}
			hold(token)
			second.set(held)
			second.notified = nil
			through.Refuse(true)
			through.Cut()
			hold(second.takeOver())
		})
	}
}

func acquire(t *testing.T, client *transport.Client, key string, options lease.Options) *lease.Tenure {
	l, err := lease.New(client, key, options)
	if err != nil {
		panic(err)
	}
	tenure, err := l.Acquire(t.Context())
	if err != nil && t.Context().Err() == nil {
		t.Error(err)
	}
	return tenure
}
