// Package top shows the leases of a store as a table that is drawn again and again: which holder each
// one has, since when, and how much time is left.
//
// The leases come from a [Source]: the status page of a store ([Status]), which knows all of them, or
// watches over MQTT of leases whose names are known ([Watching]). Over MQTT a store tells neither the
// lifetime of a key nor when its lease was acquired, so the time left is an estimate, by the renewals
// that were seen; see [Lease.Estimated].
package top
