// Package member runs a member of an etcd cluster inside a process, so that a replicated
// store needs no separate etcd.
//
// Three members on three machines keep the data while one of them is gone. Each machine of a
// pair runs a member and a store; a third machine, the witness, runs a member only.
//
//	m, err := member.Start(member.Options{
//		Name: "a",
//		Cluster: "a=https://gateway-a:2380,b=https://gateway-b:2380,c=https://witness:2380",
//		Dir:  "/var/lib/tenure/member",
//		PeerTLS: member.TLS{CA: "ca.pem", Certificate: "a.pem", Key: "a.key"},
//	})
//	…
//	defer m.Close()
//	candidate, err := cluster.Open(ctx, m.Configure(cluster.Options{Address: "gateway-a:8883"}))
//
// A store uses the member of its own process, over a Unix socket below Dir, which only the
// user of the process can open. If that member loses its peers, the store steps down, and the
// store beside another member takes over.
//
// # When a member is gone for good
//
// The data of a member must never be copied or restored: a member that forgot what it
// acknowledged can lose what the others rely on. A member that has lost its machine or disk is
// replaced by a new one. First, at a member that is alive, [Replace] takes the lost member out of
// the cluster and announces the new one. Then the new one starts with an empty Dir and
// Options.Join. The cluster must have its majority all the time: replace one member after the
// other, and wait until the new one has caught up.
//
// A member that finds its directory empty asks another one before it takes part in anything, and
// ends with [ErrLostData] if that has known it before. So a supervisor that starts a member again
// after its disk was lost does no harm.
package member
