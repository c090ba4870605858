// Package statestoretest checks that a state store follows its protocol. It has a table with
// a row for each rule of docs/protocol.md, and runs it against any implementation of [Store]:
// the state machine itself, an in-process connection, or a server over MQTT.
//
//	func TestConformance(t *testing.T) {
//		statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
//			check(t, statestoretest.NewMachine(t, options))
//		})
//	}
//
// [RunJournal] checks an implementation of [statestore.Journal] in the same way.
//
// # Scripts
//
// A row is a script of requests, expected replies and notifications, and times to wait:
//
//	a SET lock a NEX PX 1000     client "a" sends a request
//	= +OK @token                 its reply; its version is called "token" from here on
//	b KEYNOTIFY lock             client "b", which connects when it is first named
//	= +OK @-                     a reply without a version
//	a VDEL lock a ft=@token      the fencing token of the request
//	= :1 @token                  the same version once more
//	! b lock DELETE @token       the notification that "b" must have got by then
//	pass 1s                      a second passes
//
// A client that gets a notification that is not in the script fails the row.
//
// Words are separated by blanks. A word in double quotes is a string literal of Go, so that
// keys and values may be empty or binary. The last words of a request may set the properties
// of its message:
//
//	ts=none             no timestamp; without ts, a SET carries the store's time of day
//	ts=+30s:5:CLIENT    a timestamp relative to the store's time of day when the row
//	                    began, or after the last pass
//	ts="text"           any text
//	ts=@name            a named version
//	ft=…                the same for the fencing token; without ft there is none
//	store=text          the identity of the only store that may apply the request
//	corr=text           correlation data; without corr it is unique
//	denied              the client is not authorized
//
// A request that is not an array of words is a client, the word raw, and the payload as a
// string literal. In a reply, "@>name" is a version above the named one, "@+30s:6" a version
// with this wall clock and counter, "@*" any version, and "@now" the store's time of day, to a
// second, with a counter of 0. A line "drop b" ends the connection of "b" but not its session.
// "# " begins a comment.
package statestoretest
