// Package tenureotel has spans and metrics of leases and clients for OpenTelemetry, for the hooks of the
// library. It uses OpenTelemetry's API; the program sets up the SDK.
//
//	hooks, err := tenureotel.New(tenureotel.Options{})
//	…
//	client, err := transport.Dial(ctx, address, transport.Options{
//		ClientOptions: transport.ClientOptions{Trace: hooks.Transport()},
//	})
//	…
//	elector, err := election.New(client, "press-7/active", election.Options{Lease: lease.Options{Trace: hooks.Lease()}})
//
// # Spans
//
//	name               kind      begins and ends                     attributes
//	tenure SET, …      client    one request to the store            tenure.verb, tenure.outcome
//	tenure acquire     internal  the call of Acquire, the tenure     tenure.lease, tenure.holder, tenure.token
//	tenure hold        internal  a tenure; made when it has ended    tenure.lease, tenure.token, tenure.cause
//
// A request has a span if its context has one, so the renewals of leases have none; Options.Requests
// makes a span for each. A span has the status Error where the request or the tenure failed: not
// for a condition that was not met, nor for a tenure that was released. An operation that a guard
// refuses is an event "tenure.refused" of the span in its context, unless that has ended: a client calls its
// hooks soon, and nothing waits for them.
//
// # Metrics
//
//	name                                   unit  kind             attributes
//	tenure.client.lease.held                     up-down counter  tenure.lease
//	tenure.client.lease.acquisitions             counter          tenure.lease
//	tenure.client.lease.renewal.duration   s     histogram        tenure.lease
//	tenure.client.lease.renewal.headroom   s     histogram        tenure.lease
//	tenure.client.lease.renewal.failures         counter          tenure.lease
//	tenure.client.lease.ends                     counter          tenure.lease, tenure.cause
//	tenure.client.guard.refusals                 counter          tenure.lease, tenure.local
//	tenure.client.request.duration         s     histogram        tenure.verb, tenure.outcome
//	tenure.client.connected                      up-down counter
//	tenure.client.connect.failures               counter
//	tenure.client.connection.losses              counter          tenure.cause
//
// The attribute tenure.lease has as many values as the program has leases: Options.LeaseAttribute
// joins them, in metrics. Keys are in no attribute.
package tenureotel
