// Package servertest runs a Tenure server for the tests of programs that use one, in the manner of
// net/http/httptest. It needs no other process, and no configuration:
//
//	s := servertest.New(t)
//	client := s.Client(t, "node-a")
//
// Between the server and its clients is a network that a test can disturb:
//
//   - Cut closes all connections. Clients connect again, and see what a broken connection means:
//     requests with an unknown outcome, and watches that are registered again.
//   - Down cuts, and refuses connections until Up.
//   - Freeze makes all connections half-open: they stay, and nothing passes until Thaw. A client
//     cannot tell such a connection from a slow one until its keep-alive is over.
//   - Restart stops the server and starts another at the same address. Like a server that keeps
//     its data in memory, the new one knows no keys, leases or watches.
//   - Crash ends the server like a power cut, until Restart.
//
// # A durable server
//
// With Options.Journal the server keeps its data in a journal that belongs to the test. It survives
// Restart, and Crash as far as it was committed:
//
//	journal := new(transporttest.Journal)
//	s := servertest.NewWithOptions(t, servertest.Options{Journal: journal})
//	…
//	s.Crash()
//	s.Restart() // leases go on
//	s.Crash()
//	journal.Erase()
//	s.Restart() // the disk was lost: leases end
//
// The journal can be slow (SetLatency), hang (Hold) or fail (Fail). After Fail, Serve ends with an error, which
// fails the test unless Crash follows.
//
// # Virtual time
//
// With Options.InMemory there are no sockets, so that server and clients can run in a bubble of
// testing/synctest, where an hour of keep-alives, renewals and expiries takes moments. Each client
// needs Server.DialContext as its transport.Options.Dialer (Client and Dial see to that), and each
// lease the clock of the bubble:
//
//	synctest.Test(t, func(t *testing.T) {
//		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true})
//		l, err := lease.New(s.Client(t, "node-a"), "press-7/active", lease.Options{})
//		…
//	})
//
// Everything must be made in the bubble, and ends with it.
//
// # What it does not do
//
// The network has no latency and loses nothing but whole connections. The server is the real one;
// with a nil Authenticator it admits all clients.
package servertest
