// Package transporttest connects clients to a state store in the same process:
// no broker, no sockets, and, inside a [testing/synctest] bubble, no real time.
// What runs is the real state machine behind the real client; only the wire is
// missing, and in its place is one that can be cut and that can lose and delay
// messages.
//
//	synctest.Test(t, func(t *testing.T) {
//		store, _ := transporttest.NewStore(statestore.Options{})
//		defer store.Close()
//		client, _ := transport.NewClient(store.Connect("node-a"), transport.ClientOptions{})
//		defer client.Close()
//		…
//	})
//
// It is public so that programs built on Tenure can test their own failover the
// same way.
package transporttest
