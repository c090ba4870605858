// Command bench measures Tenure against other libraries for distributed locks, and against a plain
// echo of bytes. Each has its server in a process of its own, on this machine, and all take
// turns in the same run. It prints tables in Markdown. `make peers` runs it.
//
// "bench growth" measures what a store costs as it grows, and the latency of renewals as the load
// grows: `make growth`.
//
// It is in a module of its own, outside of the workspace of the repository, because it needs etcd,
// NATS and clients of Redis.
package main
