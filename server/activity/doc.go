// Package activity is what the status page of a state store shows: which client leads each name, since
// when, why it changed, which clients wait, and which clients there are.
//
// A [State] is read from the store: see server.Server.State and the State of an attached store. So it has
// leases that were loaded from a journal at once, and the history of the store before. It does not decide
// anything: only the store's replies say which client holds a lease. It is bounded: it counts what it
// leaves out.
//
// A name is a lease if it was set with an expiry and on a condition (PX and NX or NEX), as package
// lease does. The name of its holder is the one in the value, if package lease made that, and else the
// client id.
package activity
