// Package activity is a model of what happens at a state store: which client leads each name, since
// when, why it changed, and which clients wait.
//
// A store reports events ([Event]) to the function in server.Options.Observe or
// attach.Options.Observe. A [Model] takes them, and returns a [State] for any time:
//
//	model := activity.New(activity.Options{})
//	srv, err := server.New(server.Options{Observe: model.Observe})
//	…
//	state := model.State(time.Now())
//
// The model has no clock, no goroutine and no connection. Time comes in with the events and as the
// argument of State. It is bounded: Options limits names, clients and what is kept of the past, each user
// and client has an equal share of that, and the State counts what is left out.
//
// It does not decide anything: only the store's replies say which client holds a lease. It is what
// the store has seen since it started, so it does not know a lease that was loaded from a journal
// until its holder renews it. Nor does it see what a client does between two requests.
//
// A name is a lease if it was set with an expiry and on a condition (PX and NX or NEX), as package
// lease does. The name of its holder is the one in the value, if package lease made that, and else the
// client id: see [Event].Holder.
package activity
