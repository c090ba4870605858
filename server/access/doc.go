// Package access says who may connect to the store's server, and what each of them
// may do.
//
// Two small interfaces decide: an [Authenticator] when a client connects, an
// [Authorizer] for each request. [AllowKeys] is the Authorizer of a server that was
// given none. [File] is both, from a YAML file:
//
//	rules, err := access.Open("access.yaml")
//	…
//	err = rules.Reload() // after the file was changed
//
// # The file
//
//	users:
//	  - name: gateway-a                # user name of CONNECT
//	    password: $2a$10$xKAzdHbntEcG1vKcByFnZ.gmYgxjYgxO5HEKeSnfZSjecNx8ndL1K
//	    clients: ["gateway-a", "gateway-a-*"]
//	  - name: CN=press-7,O=Plant       # subject of a client certificate
//	rules:
//	  - users: ["gateway-*"]
//	    read:  ["press-7/*"]
//	    write: ["press-7/*"]
//	  - users: ["CN=press-7,O=Plant"]
//	    read:  ["press-7/active"]
//	    publish:   ["factory/press-7/*"]
//	    subscribe: ["factory/*"]
//
// A user is somebody who may connect: with the password of which there is the
// bcrypt hash, as "tenure password" prints it, or with a client certificate that TLS
// has verified. Without a hash only the certificate is left; without either nobody
// comes in, nor without a name. Clients are the MQTT client ids that the user may
// have, any if they are left out. Leases know their holders by the client id, and a
// client id that no client uses is free for any user who may have it; and a client keeps
// out another whose id is the upper-case hex of its own, or the reverse. So write them
// where users do not trust each other.
//
// A rule is for all users whose name one of its globs matches. Rules only allow,
// and what several of them allow adds up; the order does not matter.
//
//	read       keys for GET and KEYNOTIFY
//	write      keys for SET, DEL and VDEL; reading is not included
//	publish    topics to publish to, and to be answered on
//	subscribe  topics to receive, and filters to subscribe to
//
// What no rule allows to do with a key is refused. With topics it is the same once
// any rule has publish or subscribe; a file that has neither is about keys alone and
// leaves the topics open to everybody. The store's own topics, and a client's own
// topics below clients/, need no rule. An application that answers another one publishes to
// clients/{id of the other}/…, and needs a rule: publish: ["clients/*/services/press/*"],
// for example. No rule lets a client publish where the store answers.
//
// In a glob, * is any run of bytes, also of slashes and also none, ? is one byte,
// and everything else is itself, + and # of MQTT included: a topic glob with one of
// these is refused. The glob factory/* covers the filter factory/#, except for the
// topic factory itself, and not the filter +/press-7. A subscription with a wildcard is
// granted and delivers what its user may read; one that is shared ($share/group/filter) is
// refused unless a glob covers all of its filter, since what its user may not read would
// be lost for the other members of the group: for $share/press/factory/# it takes the globs
// factory and factory/*, since factory/# matches factory too. Write globs that begin with *
// in quotes. A key that is not text can be written as !!binary, in base64.
//
// A field that is unknown, or a list that is empty, is an error and not ignored. So
// is a hash of a cost beyond 16, which would take seconds for each connection.
//
// # What it does not do
//
//   - It does not close connections. After a Reload a user that was removed stays
//     connected and every request is refused; watches that it began, and topics in a
//     file without topic rules, go on until the connection ends. Passwords, client
//     ids and certificates are looked at when a client connects and not again.
//   - It does not count or delay wrong passwords. Each costs one bcrypt comparison,
//     some 50 ms of a processor at cost 10. Package server runs few of them at once. The
//     latest good password of a user is remembered until the file is read again, so
//     that clients that come back cost none.
//   - It does not verify certificates. TLS does; Credentials.Certified says so.
//   - It does not hide who is a user if the file mixes costs: a stranger is kept
//     as long as the costliest user, and a cheaper user is told sooner.
//   - It does not encrypt. Over a connection without TLS anybody on the way can
//     read the passwords.
//
// # Errors
//
//	from           meaning                              who recovers, how
//	Open, Parse    the file cannot be read or is wrong  the operator: the error names the place and the cure
//	Reload         the same; the old rules stay         the operator, without hurry
//	Authenticate   the client is not admitted           the log has the reason; the client gets none
package access
