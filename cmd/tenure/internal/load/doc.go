// Package load measures a state store: clients that send requests, and how long the answers take.
//
// Without a rate each client keeps a number of requests in flight, and sends the next one when one
// is answered (a closed loop). A store that pauses is then sent fewer requests, and the pause shows in
// few of them only. With a rate, requests are due at fixed times whatever the store does (an open
// loop), and latency counts from the time at which a request was due. So a pause shows in all
// requests that were due meanwhile, also in those that could not be sent any more: coordinated omission
// is accounted for.
//
// All keys are below a prefix of the run, expire by themselves, and are removed at the end.
package load
