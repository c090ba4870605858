// Package statestoretest checks that a state store follows its protocol. It has a table with
// a row for each rule of docs/protocol.md, and runs it against any implementation of [Store]:
// the state machine itself, an in-process connection, or a server over MQTT.
//
//	func TestConformance(t *testing.T) {
//		statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
//			check(t, newStore(t, options)) // a Store of yours
//		})
//	}
//
// [RunJournal] checks an implementation of [statestore.Journal] in the same way.
//
// The table is conformance.json. Its beginning says how it is to be read. docs/conformance.py is a client that runs it.
package statestoretest
