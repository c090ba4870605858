// Package access says which clients may connect to the server of the store, and what each of
// them may do.
//
// Two small interfaces decide: an [Authenticator] when a client connects, an [Authorizer] for
// each request. [AllowKeys] is the default Authorizer of a server. [File] is both, from a YAML
// file:
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
// A user may connect with a password, of which the file has the bcrypt hash as "tenure password"
// prints it, or with a client certificate that TLS has verified. A user without a hash needs
// a certificate, and a client without a user name is not admitted. Clients are the MQTT client
// ids that the user may have; if they are left out, any. Leases identify their holders by
// client id. A client id that is not in use is free for any user that may have it. Of two clients,
// one with the upper-case hex of the id of the other, only one can connect. So list the
// client ids if users do not trust each other.
//
// A rule applies to all users with a name that matches one of its globs. Rules only allow, and a
// user may do what any rule allows; the order does not matter.
//
//	read       keys for GET and KEYNOTIFY
//	write      keys for SET, DEL and VDEL; reading is not included
//	publish    topics to publish to, and to be answered on
//	subscribe  topics to receive, and filters to subscribe to
//
// An access to a key that no rule allows is refused. So is an access to a topic, if any rule has
// publish or subscribe; a file that has neither is about keys only, and allows all topics to every
// user. The topics of the store, and a client's own topics below clients/, need no rule. An
// application that answers another one publishes to clients/{id of the other}/…, and needs a
// rule such as publish: ["clients/*/services/press/*"]. No rule lets a client publish where the
// store answers.
//
// In a glob, * matches any bytes, including slashes, or none; ? matches one byte; all other bytes
// match themselves. That includes + and # of MQTT, so a topic glob with one of these is
// refused. The glob factory/* covers the filter factory/#, except for the topic factory itself,
// and does not cover the filter +/press-7. A subscription with a wildcard is granted and
// delivers what its user may read. Write globs that begin with * in quotes. A key that is not text can be
// written as !!binary, in base64.
//
// An unknown field and an empty list are errors. So is a hash with a cost beyond 16, which would
// take seconds for each connection.
//
// # What it does not do
//
//   - It does not close connections. After a Reload, a client of a removed user stays connected
//     and every request is refused; its watches, and its topics if the file has no topic
//     rules, go on until the connection ends. Passwords, client ids and certificates are
//     checked only when a client connects.
//   - It does not count or delay wrong passwords. Each costs one bcrypt comparison,
//     some 50 ms of a processor at cost 10. Package server runs few of them at once. The
//     latest correct password of a user is remembered until the file is read again, so
//     that clients that come back need no comparison.
//   - It does not verify certificates. TLS does; Credentials.Certified says so.
//   - It does not hide which users exist if the file mixes costs: for an unknown user the check
//     takes as long as for the highest cost, and for a user with a lower cost less.
//   - It does not encrypt. Without TLS, passwords can be read on the network.
//
// # Errors
//
//	from           meaning                              recovery
//	Open, Parse    the file cannot be read or is wrong  the operator: the error names the place and the remedy
//	Reload         the same; the old rules stay         the operator, without hurry
//	Authenticate   the client is not admitted           the log has the reason; the client gets none
package access
