// Package transporttest connects clients to a state store in the same process: without a
// broker, without sockets and, in a [testing/synctest] bubble, in virtual time. The client
// and the store are the real ones. Between them is no network but a Conn, with faults that
// a test chooses:
//
//	a request and its reply    Conn.SetFault: lose, hold for minutes, repeat, cut, no store
//	a notification             Conn.SetNotificationFault: lose, hold, repeat; Conn.Forge; Conn.Silence
//	the order of messages      hold the first for longer than the second
//	a connection               Conn.Cut and Conn.Restore; Conn.Freeze: half-open; a second Store.Connect takes over
//	the store                  Store.Restart with its broker, Store.Replace without; Store.HideIdentity
//	a durable store            Store.Crash and Store.Recover; Journal.SetLatency, Journal.Fail; another store on it
//	a clock                    lease.Options.Clock, transport.ClientOptions.Now, Store.SetWall
//
// Store.Tap shows what the store did, and in which order, so that a test can check what each
// client believed.
//
//	synctest.Test(t, func(t *testing.T) {
//		store := transporttest.Start(t)
//		client, conn := store.Client(t, "node-a", transport.ClientOptions{})
//		…
//		conn.Cut()
//		…
//	})
//
// A store from NewStore or Start is in memory, and a restart loses its data. NewDurableStore and
// StartDurable give the store a Journal, which outlives it: after a crash the data, the fences
// and the identity are there, so tenures go on if the store is back in time.
//
// The package is public so that programs that use Tenure can test their own failover in the
// same way.
package transporttest
