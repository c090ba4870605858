// Package transport is a client of the state store, over MQTT 5.
//
//	client, err := transport.Dial(ctx, "mqtt://localhost:1883", transport.Options{ClientID: "gateway-a"})
//	…
//	defer client.Close()
//	version, err := client.Set(ctx, "recipe", []byte("42"), transport.SetOptions{})
//	entry, err := client.Get(ctx, "recipe")
//	watch, err := client.Watch("recipe")
//
// A request and its reply are MQTT messages, matched by correlation data. Every value has a
// version, which also feeds the client's hybrid logical clock. After a loss the client
// connects again, with exponential backoff, and registers its watches again.
//
// # Connections
//
// [Dial] connects over TCP or WebSocket, with or without TLS, to one broker or to the first
// of several that accepts the client. WebSocket comes from the module contrib/tenurews:
//
//	client, err := transport.Dial(ctx, "mqtts://a.example,wss://b.example/mqtt", transport.Options{
//		Username: "gateway-a", PasswordFile: "/run/secrets/mqtt", WebSocket: tenurews.Upgrade,
//		TLS: transport.TLSOptions{CAFile: "/etc/tenure/ca.pem"},
//	})
//
// The client reads files with passwords, tokens, certificates and authorities again for each
// connection, so they can be replaced; it also authenticates a connection again when the token
// of a Kubernetes service account changes. [FromEnv] reads all of that from the variables that
// Azure IoT Operations sets for workloads, with a suffix beside another library that uses
// them: a client id has one connection at a time. [Client.Connection]
// shows the state of the connection, and a [Trace] hears of each change.
//
// All requests of a client share one connection and leave in order, requests of leases first
// (Binding.Urgent). They cannot overtake a packet that is being written: a value of a megabyte
// on a slow line delays the renewal behind it, and if nothing arrives meanwhile, the client may
// take the connection for dead. Give large values a client of their own, with its own client id,
// if the largest takes longer to send than the RequestTimeout of a lease (by default a sixth of
// its TTL).
//
// [Client.Probe] checks whether a silent connection still works. Leases call it when a request
// times out, so that a half-open connection costs a timeout and not the lease.
//
// [Trace] has functions for metrics and spans: each request with its duration and outcome, each
// connection and its loss. The modules contrib/tenureprom and contrib/tenureotel implement it.
//
// # What is guaranteed, and what is not
//
// A request is sent at most once. One that waits for a connection is sent within its context
// or never; one that waits for its reply fails at once when the connection is lost. Without a
// reply, the client cannot know whether the store applied the request, and the error says so. The
// client does not repeat it: the caller knows whether that would do harm.
//
// [Client.SetWill] gives the broker a Will: a request that the broker makes in the client's
// name when it loses the client. Whether that happens depends on the broker and the store.
//
// A change from a [Watch] may be late. Change.Missed says that earlier changes may be
// missing. A notification is a hint; a reply says what the key holds.
//
// # Clocks
//
// The wall clock of a node orders its requests and decides nothing else. It may step by
// hours, in either direction. A clock that is behind does no harm. If it is more than a minute
// ahead, the store refuses one request. The client repeats that, and goes by the store's clock
// until the node's is right again. The Logger hears of both kinds of disagreement.
//
// # Errors
//
//	errors.Is                          meaning                                 what recovers
//	ErrOutcomeUnknown                  perhaps applied                         read the key, or repeat what may be
//	ErrNotSent                         never sent                              repeat
//	ErrConditionFailed                 NX, NEX or the value of VDel differed   the program decides
//	ErrNotAuthorized and others        the store refused (*RefusedError)       the program or its operator
//	ErrOtherStore                      the store was replaced (see Store)      begin again: earlier leases are void
//	ErrTimestampTooFarAhead            a clock is more than a minute ahead     the operator: the error names the clock
//	ErrNoStore                         no store on this broker                 the operator; or repeat until there is one
//	ErrNoStore and ErrOutcomeUnknown   no reply, ever: probably no store       the operator; else as ErrOutcomeUnknown
//	*ConnectionError                   the broker refuses the connection       the operator: the error says why;
//	                                                                           a client that was connected goes on trying
//	*ConnectionError                   why the broker ended the connection     the client connects again
//	ErrPacketTooLarge, *RejectedError  the broker rejected the request         the program, or the broker's operator
//	ErrPacketTooLarge, outcome unknown the broker may have sent too much       the operator: see Options.MaxPacketSize
//	ErrServerBusy, ErrQuotaExceeded    the broker is overloaded                repeat later
//	ErrServerBusy, outcome unknown     the journal of the store is slow        as ErrOutcomeUnknown, a moment later
//	ErrUseAnotherServer                the broker stands by, or has moved      the client goes on to its next address
//	ErrWillInUse, ErrNoWill            the connection has no such Will         the program: one client for each Will
//	ErrSessionTakenOver, ErrClosed     the client has ended                    dial again, with a client id of its own
//
// A version that is ahead of this node's clock is not an error: the caller gets it, and the
// Logger gets a warning. Messages that the client cannot use, such as replies that came twice, are
// ignored, with a line at level Debug.
//
// # Goroutines
//
// Each client has one goroutine, which connects and reads, and another one for each connection, which sends.
// Functions of yours have one while any is due, and each watched key has one while there is something to
// register. Others end soon. Close ends all of them, and those started with [Client.Go], and waits. A broker that
// hangs delays Close by a second or two; a function of yours, by as long as it runs.
//
// Requests and replies do not pass through paho's codec: internal/mqtt encodes and decodes them, several
// times as fast.
//
// # Documents
//
// docs/protocol.md is the norm of what a client sends and receives, docs/embed.md shows how to
// reach a broker, and CONTRIBUTING.md has the path of a request through the packages.
package transport
