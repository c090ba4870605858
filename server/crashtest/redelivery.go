package crashtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/resp3"
)

// redeliveries are requests of a client that delivers them again after each crash, whether or
// not they were answered, as MQTT allows. Each creates a key of its own, if there is none yet
// (NX). If a crash kept the key and not the remembered reply, the second delivery fails; if it
// kept the reply and not the key, the key is missing.
type redeliveries struct {
	recorder *recorder
	clientID string
	dial     func(ctx context.Context) (net.Conn, error)

	recent []*redelivery // the latest requests, in order
	count  int
	behind time.Duration // by how much the store's clock was behind when it refused a request
}

// redelivery is one request.
type redelivery struct {
	packet   packets.Publish
	key      string
	answered bool
	version  string        // of the first reply
	before   hlc.Timestamp // the highest version that any client had seen when it was sent first
}

const mostRedelivered = 8

// deliver sends requests until ctx ends. other reads the keys.
func (d *redeliveries) deliver(ctx context.Context, other *session, random *rand.Rand) {
	for ctx.Err() == nil {
		conn, err := d.dial(ctx)
		if err == nil {
			d.use(ctx, conn, other, random)
		}
		sleep.For(ctx, time.Duration(1+random.IntN(10))*time.Millisecond)
	}
}

func (d *redeliveries) responseTopic() string { return protocol.ResponseTopic(d.clientID) }

// use delivers the recent requests again over a new connection, and then new ones, until the
// connection or ctx ends.
func (d *redeliveries) use(ctx context.Context, conn net.Conn, other *session, random *rand.Rand) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	if d.login(conn) != nil {
		return
	}
	// This client has no clock of its own that follows the store's. So its first request after a
	// crash shows whether the store has forgotten versions.
	recent := slices.Clone(d.recent)
	if !d.ask(ctx, conn, other, d.next()) {
		return
	}
	for _, r := range recent {
		r.packet.Duplicate = true
		if !d.ask(ctx, conn, other, r) {
			return
		}
		d.recorder.count(redelivered, 1)
	}
	for {
		// One request at a time, or a few, so that crashes meet several unanswered ones.
		var some []*redelivery
		for range 1 + random.IntN(4) {
			some = append(some, d.next())
		}
		if !d.ask(ctx, conn, other, some...) {
			return
		}
		sleep.For(ctx, time.Duration(random.IntN(10))*time.Millisecond)
	}
}

// login resumes the session: a client that asks for a new one delivers nothing again.
func (d *redeliveries) login(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(requestTimeout)) // or the next use of it fails
	hour := uint32(3600)
	connect := packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: d.clientID, KeepAlive: 60,
		Properties: &packets.Properties{SessionExpiryInterval: &hour}}
	subscribe := packets.Subscribe{PacketID: 1, Properties: &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: d.responseTopic(), QoS: 1}}}
	for _, packet := range []io.WriterTo{&connect, &subscribe} {
		if _, err := packet.WriteTo(conn); err != nil {
			return err
		}
		if _, err := packets.ReadPacket(conn); err != nil { // a refusal ends the connection
			return err
		}
	}
	return nil
}

// next returns a new request.
func (d *redeliveries) next() *redelivery {
	d.count++
	key := fmt.Sprintf("%s/%d", d.clientID, d.count)
	correlation := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(d.count))
	now := hlc.Timestamp{Wall: time.Now().Add(-d.behind).UnixMilli(), Node: d.clientID}
	r := &redelivery{key: key, packet: packets.Publish{
		Topic:    protocol.InvokeTopic,
		QoS:      1,
		PacketID: uint16(2 + d.count%60_000),
		Payload:  resp3.AppendCommand(nil, "SET", key, "here", "NX"),
		Properties: &packets.Properties{
			ResponseTopic:   d.responseTopic(),
			CorrelationData: correlation,
			User:            []packets.User{{Key: protocol.PropertyTimestamp, Value: now.String()}},
		},
	}}
	if d.recent = append(d.recent, r); len(d.recent) > mostRedelivered {
		d.recent = d.recent[1:]
	}
	return r
}

// ask sends requests, then judges a reply to each, and reports whether the connection lasts.
func (d *redeliveries) ask(ctx context.Context, conn net.Conn, other *session, requests ...*redelivery) bool {
	_ = conn.SetDeadline(time.Now().Add(requestTimeout)) // or the next use of it fails
	for _, r := range requests {
		if !r.packet.Duplicate {
			r.before = d.recorder.saw(hlc.Timestamp{})
		}
		if _, err := r.packet.WriteTo(conn); err != nil {
			return false
		}
	}
	for range requests {
		if d.receive(ctx, conn, other) != nil {
			return false
		}
	}
	return true
}

// receive waits for the next reply and judges it.
func (d *redeliveries) receive(ctx context.Context, conn net.Conn, other *session) error {
	for {
		packet, err := packets.ReadPacket(conn)
		if err != nil {
			return err
		}
		reply, ok := packet.Content.(*packets.Publish)
		if !ok {
			continue // an acknowledgement
		}
		if reply.QoS > 0 {
			acknowledge := packets.Puback{PacketID: reply.PacketID, Properties: &packets.Properties{}}
			if _, err := acknowledge.WriteTo(conn); err != nil {
				return err
			}
		}
		for _, r := range d.recent {
			if string(r.packet.Properties.CorrelationData) == string(reply.Properties.CorrelationData) {
				d.judge(ctx, r, reply, other)
			}
		}
		return nil
	}
}

// judge compares a reply with what must have happened.
func (d *redeliveries) judge(ctx context.Context, r *redelivery, reply *packets.Publish, other *session) {
	version := ""
	for _, property := range reply.Properties.User {
		if property.Key == protocol.PropertyTimestamp {
			version = property.Value
		}
	}
	if strings.HasPrefix(string(reply.Payload), "-ERR "+string(protocol.TimestampTooFarAhead)) && !r.answered {
		d.adapt(ctx, r, version, other)
		return
	}
	switch {
	case string(reply.Payload) != "+OK\r\n":
		d.recorder.violated("%s: the key is there, and the request that made it was delivered again, and answered %q",
			r.key, reply.Payload)
		return
	case r.answered && version != r.version:
		d.recorder.violated("%s: the first delivery was answered with version %s, and the second with %s",
			r.key, r.version, version)
		return
	}
	again := r.packet.Duplicate
	if parsed, err := hlc.Parse(version); err != nil || !again && parsed.Compare(r.before) <= 0 {
		d.recorder.violated("%s got version %s, after version %v was seen: %v", r.key, version, r.before, err)
	} else {
		d.recorder.saw(parsed)
	}
	r.answered, r.version = true, version
	if !again {
		return
	}
	o := other.do(ctx, Operation{Kind: Get, Key: r.key})
	if o.Result == Absent || o.Result == Done && o.Version.String() != version {
		d.recorder.violated("%v; the request that made it was delivered again and answered with version %s", o, version)
	}
}

// adapt follows the clock of a store that refuses a request as too far ahead, because its system's
// clock was set back. If the request was applied before, the store had to remember that.
func (d *redeliveries) adapt(ctx context.Context, r *redelivery, version string, other *session) {
	store, err := hlc.Parse(version)
	if err != nil {
		d.recorder.violated("%s was refused as too far ahead with version %q: %v", r.key, version, err)
		return
	}
	d.behind = time.Since(time.UnixMilli(store.Wall))
	if o := other.do(ctx, Operation{Kind: Get, Key: r.key}); o.Result == Done {
		d.recorder.violated("%v; the request that made it was delivered again, and refused as too far ahead", o)
	}
}
