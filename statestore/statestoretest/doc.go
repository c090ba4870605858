// Package statestoretest checks that a state store follows its protocol. It holds
// one table, a row for each rule of the protocol's description, and runs it against
// anything that can be reached as a [Store]: the state machine itself, an in-process
// connection, a server over MQTT, and stores that are durable or replicated.
//
//	func TestConformance(t *testing.T) {
//		statestoretest.Run(t, func(t *testing.T, options statestoretest.Options, check func(*testing.T, statestoretest.Store)) {
//			check(t, statestoretest.NewMachine(t, options))
//		})
//	}
//
// # Scripts
//
// A row is a script of what clients send, what must come back, and what time does
// in between:
//
//	a SET lock a NEX PX 1000     client "a" sends a request
//	= +OK @token                 its reply; its version is called "token" from here on
//	b KEYNOTIFY lock             client "b", which connects when it is first named
//	= +OK @-                     a reply without a version
//	a VDEL lock a ft=@token      the fencing token of the request
//	= :1 @token                  the same version once more
//	! b lock DELETE @token       the notification that "b" must have got by then
//	pass 1s                      time goes by
//
// What is not written is checked too: a client that got more notifications than the
// script says, or others, fails the row.
//
// Words are separated by blanks. A word in double quotes is one of Go's string
// literals, so that keys and values may be empty or binary. The last words of a
// request may say what goes beside its payload:
//
//	ts=none             no timestamp; without ts, a SET carries the store's time of day
//	ts=+30s:5:CLIENT    a timestamp relative to the store's time of day when the row
//	                    began, or when time last went by
//	ts="text"           any text
//	ts=@name            a version that was named before
//	ft=…                the same for the fencing token; without ft there is none
//	store=text          the identity of the only store that may apply the request
//	corr=text           correlation data; without corr it is unique
//	denied              the client is not authorized
//
// and a request that is no array of words is written as a client, the word raw, and
// the payload as a string literal. In a reply, "@>name" stands for a version greater
// than the one named, "@+30s:6" for one whose wall clock and counter are these, "@*"
// for any version, "@now" for the store's time of day, to a second, with a counter of 0.
// A line "drop b" ends the connection of "b" without its session;
// "# " begins a comment.
//
// The same language serves for traces: [Trace] runs a script and returns it with
// what the store really said in place of what was expected.
package statestoretest
