package testsupport

import (
	"testing"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// AllowAll is a hook of mochi that admits every client and allows everything. Messages are sent
// without regard to the Receive Maximum of clients: after each packet of a client mochi v2.7.9 looks
// for a message that had to wait for it, locks the messages in flight for reading twice, and waits
// for ever if another message comes in between.
type AllowAll struct{ mochi.HookBase }

// ID implements mochi.Hook.
func (*AllowAll) ID() string { return "allow all" }

// Provides implements mochi.Hook.
func (*AllowAll) Provides(call byte) bool {
	return call == mochi.OnConnectAuthenticate || call == mochi.OnACLCheck || call == mochi.OnSessionEstablished
}

// OnConnectAuthenticate implements mochi.Hook.
func (*AllowAll) OnConnectAuthenticate(*mochi.Client, packets.Packet) bool { return true }

// OnACLCheck implements mochi.Hook.
func (*AllowAll) OnACLCheck(*mochi.Client, string, bool) bool { return true }

// OnSessionEstablished implements mochi.Hook.
func (*AllowAll) OnSessionEstablished(cl *mochi.Client, _ packets.Packet) {
	cl.State.Inflight.ResetSendQuota(0)
}

// StartBroker runs mochi, without a store, on a free port until the test ends.
func StartBroker(t *testing.T, hook mochi.Hook) (address string) {
	t.Helper()
	broker := mochi.New(&mochi.Options{Logger: Discard})
	if err := broker.AddHook(hook, nil); err != nil {
		t.Fatal(err)
	}
	socket := Listen(t)
	if err := broker.AddListener(brokerListener{listeners.NewNet("tcp", socket)}); err != nil {
		t.Fatal(err)
	}
	if err := broker.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, client := range broker.Clients.GetAll() {
			client.Stop(packets.ErrServerShuttingDown)
		}
		_ = broker.Close()
	})
	return socket.Addr().String()
}

// brokerListener does not let mochi disconnect its clients when it closes: mochi v2.7.9 locks its
// clients for reading twice then, and waits for ever if a client leaves in between.
type brokerListener struct{ *listeners.Net }

// Close implements listeners.Listener.
func (l brokerListener) Close(listeners.CloseFn) { l.Net.Close(func(string) {}) }
