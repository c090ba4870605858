// Package transport is a client of the state store, over MQTT 5.
//
//	client, err := transport.Dial(ctx, "mqtt://localhost:1883", transport.Options{ClientID: "gateway-a"})
//	…
//	defer client.Close()
//	version, err := client.Set(ctx, "recipe", []byte("42"), transport.SetOptions{})
//	entry, err := client.Get(ctx, "recipe")
//	watch, err := client.Watch("recipe")
//
// Requests and replies are messages, matched by correlation data; a version comes
// with every value, and feeds the client's hybrid logical clock. The connection
// comes back by itself after a loss, with exponential backoff, and takes up its
// watches again.
//
// # Connections
//
// [Dial] goes over TCP or WebSocket, with or without TLS, to one broker or to the first of
// several that takes it:
//
//	client, err := transport.Dial(ctx, "mqtts://a.example,wss://b.example/mqtt", transport.Options{
//		Username: "gateway-a", PasswordFile: "/run/secrets/mqtt",
//		TLS: transport.TLSOptions{CAFile: "/etc/tenure/ca.pem"},
//	})
//
// Passwords, tokens, certificates and authorities that are in files are read for each
// connection, so that they can be replaced; the token of a Kubernetes service account is
// shown anew while a connection lasts. [FromEnv] reads all of that from the variables that
// workloads of Azure IoT Operations are given. If another library in the process uses them
// too, take [FromEnvWithSuffix], because a client id has one connection at a time.
// [Client.Connection] and Options.OnConnectionChange show the state of the connection.
//
// All requests of a client share one connection and leave in turn, except that the requests
// of leases leave first (SetOptions.Urgent). A packet that is being written cannot be
// overtaken: a value of a megabyte on a slow line delays the renewal behind it until it is
// sent, and a connection on which nothing arrives meanwhile may be taken for dead. Give
// large values a client of their own, with its own client id, if the largest takes longer
// to send than the RequestTimeout of a lease (by default a sixth of its TTL).
//
// [Client.Probe] finds out whether a silent connection still works. Leases call it when a
// request of theirs is not answered in time, so that a half-open connection costs a timeout
// and not the lease.
//
// # What is guaranteed, and what is not
//
// A request is sent at most once. One that waits for a connection is sent within
// its context or never; one that waits for its reply fails at once when the
// connection drops. Nothing is queued beyond its caller. Whether a request without
// a reply was applied cannot be known, and the error says so. It is not repeated:
// that is for the caller, who knows whether repeating does harm.
//
// [Client.SetWill] leaves a last will with the broker: a request that it makes in the
// client's name when it loses the client. Whether it does, the broker and the store
// decide.
//
// A change that a [Watch] shows came over a network and may be late. What it leaves
// out is told (Change.Missed), but a notification is a hint, not a fact about now.
//
// # Clocks
//
// The wall clock of a node orders its requests and decides nothing else. It may step by
// hours, either way. A clock that is behind does no harm. A client whose clock is more
// than a minute ahead of the store's is refused once. From then on it goes by the store's
// clock, which the refusal contains, or else by the latest version it has seen. It repeats
// the refused request within the caller's context, and the caller gets the second reply.
// When the node's clock is right again, the client goes by that. [Client.Skew] reports both
// kinds of disagreement to the operator.
//
// # Errors
//
//	errors.Is                          meaning                                who recovers, how
//	ErrOutcomeUnknown                  perhaps applied                        read, or repeat what may be repeated
//	ErrNotSent                         never sent                             repeat
//	ErrConditionFailed                 NX, NEX or the value of VDel differed  as the program means it
//	ErrNotAuthorized and the like      the store refused (*RefusedError)      the program or its operator
//	ErrOtherStore                      the store was replaced (see Store)     what the one before granted is void
//	*SkewError                         a clock is more than a minute ahead    the operator: it says which clock
//	ErrNoStore                         the broker knows no store              the operator; or repeat until one is there
//	ErrNoStore and ErrOutcomeUnknown   nobody answered, ever: likely no store the operator; else as ErrOutcomeUnknown
//	*ConnectError                      the broker refuses the connection      the operator: it says what to check; after the
//	                                                                          first connection the client goes on trying
//	*DisconnectError                   why the broker ended the connection    the client, by connecting again
//	ErrPacketTooLarge, *RejectedError  the broker refused the request         the program, or the broker's operator
//	ErrPacketTooLarge, outcome unknown the broker may have sent too much      the operator: see Options.MaxPacketSize
//	ErrServerBusy, ErrQuotaExceeded    the broker has too much to do          repeat, later
//	ErrWillInUse, ErrNoWill            no last will was left                  the program: a client for each
//	ErrSessionTakenOver, ErrClosed     this client is finished                dial again, under a client id of its own
//
// A version that is ahead of this node's clock is no error: it is returned, and
// [Client.Skew] reports it. What a client got and could not use, such as replies that
// came twice, is ignored and counted: see [Client.Stats].
//
// # Goroutines
//
// Each client has one goroutine that connects, subscribes and sends. paho has a few more
// while a connection lasts. Requests and replies do not pass through paho: the fast path of
// this package writes the packets of requests to the connection and takes replies out of
// it, several times as fast. Each watched key has a goroutine that keeps it registered, and
// OnConnectionChange has one. Close ends all of them, and those started with [Client.Go],
// and waits. A broker that hangs delays Close by a second or two; a function of yours, by
// as long as it runs.
//
// # Documents
//
// docs/protocol.md is the norm of what a client sends and receives, docs/connections.md shows how to
// reach a broker, and docs/design.md has the path of a request through the packages.
package transport
