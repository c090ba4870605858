// Package transporttest connects clients to a state store in the same process:
// no broker, no sockets, and, inside a [testing/synctest] bubble, no real time.
// What runs is the real state machine behind the real client; only the wire is
// missing, and in its place is one that does harm on request.
//
//	to a request and its reply    Conn.SetFault: lose, hold for minutes, repeat, cut before or after the store, no store
//	to a notification             Conn.SetNotificationFault: lose, hold, repeat; Conn.Forge; Conn.Silence
//	to the order of messages      hold the first for longer than the second
//	to a connection               Conn.Cut and Conn.Restore; Conn.Freeze makes it half-open; Store.Connect again takes over
//	to the store                  Store.Restart with its broker, Store.Replace without; Store.HideIdentity
//	to a clock                    lease.Options.Clock, transport.ClientOptions.Now, Store.SetWall
//
// Store.Tap shows what the store really did, and in which order, so that a test can judge
// what each client believed.
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
