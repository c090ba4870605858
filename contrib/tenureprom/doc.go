// Package tenureprom has metrics of leases and clients, for the hooks of the library.
//
//	metrics := tenureprom.New(tenureprom.Options{})
//	prometheus.MustRegister(metrics)
//	client, err := transport.Dial(ctx, address, transport.Options{
//		ClientOptions: transport.ClientOptions{Trace: metrics.Transport()},
//	})
//	…
//	elector, err := election.New(client, "press-7/active", election.Options{
//		Lease: lease.Options{Trace: metrics.Lease()},
//	})
//
// The metrics are about this process. Those of a store, such as "press-7 has no holder", are the
// server's: tenure serve --admin.
//
//	name                                           kind       labels          what to look for
//	tenure_client_lease_held                       gauge      lease           1 on one node of a pair, 0 on the others
//	tenure_client_lease_acquisitions_total         counter    lease           a rise is a hand-over or a failover
//	tenure_client_lease_attempts_total             counter    lease, result   granted, held, or an outcome as below
//	tenure_client_lease_acquire_wait_seconds       histogram  lease           how long standbys waited
//	tenure_client_lease_renewals_total             counter    lease, result   renewed, failed: some failures are harmless
//	tenure_client_lease_renewal_duration_seconds   histogram  lease           the round trip to the store
//	tenure_client_lease_renewal_headroom_seconds   histogram  lease           near GracePeriod: nearly lost
//	tenure_client_lease_ends_total                 counter    lease, cause    any but "released": see package lease
//	tenure_client_lease_tenure_duration_seconds    histogram  lease           short ones: the lead flaps
//	tenure_client_guard_refusals_total             counter    lease, place    "store": a stale write was prevented
//	tenure_client_requests_total                   counter    verb, outcome   ok, condition_failed, refused, not_sent,
//	                                                                         unknown, failed
//	tenure_client_request_duration_seconds         histogram  verb            the wait for a connection is part of it
//	tenure_client_connected                        gauge                      0: no connection now
//	tenure_client_connections_total                counter                    a rise is a reconnect
//	tenure_client_connect_failures_total           counter                    attempts that failed
//	tenure_client_connection_losses_total          counter    cause           client_closed, session_taken_over, broker,
//	                                                                         will_changed, network
//
// A label "lease" has as many values as the program has leases: Options.LeaseLabel joins them.
// Keys and holders are no labels. A client calls the hooks in a goroutine of its own, and drops calls while
// 16,384 wait for a hook that blocks: then counters lack them, and the log of the client says how many.
package tenureprom
