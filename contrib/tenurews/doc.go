// Package tenurews carries MQTT over WebSocket, for brokers at addresses such as ws://host/mqtt and
// wss://host/mqtt. It is a module of its own, so that programs without WebSocket do not depend on
// github.com/coder/websocket:
//
//	client, err := transport.Dial(ctx, "wss://broker.example/mqtt", transport.Options{
//		WebSocket: tenurews.Upgrade,
//	})
//
// attach.Options has the same field. The client opens the connection and encrypts it before Upgrade
// gets it, so Options.Dialer and Options.TLS apply as for addresses without WebSocket. Keep-alive, the
// limits of packets and the time that a packet may take to be written are the client's too.
package tenurews
