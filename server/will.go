package server

import (
	"fmt"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// keepWill keeps the Will in a CONNECT that is a request with the connection, and takes
// it away from the broker, which would publish it to whoever listens inside. It refuses
// a Will that could never be applied: when its time comes there is nobody left who could
// be told what it lacks.
func (s *Server) keepWill(who access.Identity, cl *mqtt.Client, conn *connection, pk packets.Packet) *packets.Code {
	will := requestIn(packets.Packet{
		FixedHeader: packets.FixedHeader{Qos: pk.Connect.WillQos, Retain: pk.Connect.WillRetain},
		Payload:     pk.Connect.WillPayload,
		Properties:  pk.Connect.WillProperties,
	})
	if refused := s.checkWill(who, cl, will, pk.Connect.WillProperties.WillDelayInterval); refused != nil {
		return refusal(*refused, "a Will for the state store must be a valid request: "+refused.Reason)
	}
	conn.will, cl.Properties.Will = &will, mqtt.Will{}
	return nil
}

// checkWill judges a Will as the request that it is to be. What depends on the moment
// (authorization, the clock, fencing) is judged in the moment in which it is applied.
func (s *Server) checkWill(who access.Identity, cl *mqtt.Client, will request, delay uint32) *packets.Code {
	if why := s.checkRequest(who, cl, will); why != "" {
		return refusal(codeOf(why), string(why))
	}
	if delay > 0 {
		return refusal(packets.ErrImplementationSpecificError, fmt.Sprintf("it is applied when the connection ends, so its Will Delay Interval must be 0, not %d", delay))
	}
	command := s.read(cl, will)
	if err := command.Err(); err != nil {
		return refusal(packets.ErrImplementationSpecificError, err.Error())
	}
	if command.Verb == statestore.VerbSet && will.timestamp == nil {
		return refusal(packets.ErrImplementationSpecificError, string(protocol.MissingTimestamp))
	}
	for _, text := range []*string{will.timestamp, will.fencingToken} {
		if text == nil {
			continue
		}
		if _, err := hlc.Parse(*text); err != nil {
			return refusal(packets.ErrImplementationSpecificError, string(protocol.MalformedTimestamp))
		}
	}
	return nil
}

// applyWill applies the request that a client left as its Will: now, in its name and
// with its rights, as if it had sent it as its last. It must be called once, by the
// goroutine that read the connection, when nothing else is left to read.
//
// When the server stops, no Wills are applied. The clients live; and a lease that is
// released then would be granted, by a store that will have forgotten it in a moment, to
// some other client that is still to be sent away.
func (s *Server) applyWill(cl *mqtt.Client, conn *connection) {
	if conn.will == nil || s.stopping.Load() {
		return
	}
	conn.reserved = conn.will.responseTopic // for the Will, since CONNECT
	if fault := s.handle(cl, *conn.will); fault != nil {
		return // counted and logged, as for any request
	}
	s.count(func(stats *Stats) { stats.AppliedWills++ })
	s.logger.Debug("applied a Will", "client", logs.Name(cl.ID))
}
