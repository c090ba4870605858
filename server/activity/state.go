package activity

import (
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// Info is what a process with a store is. The program that runs the store adds it to a State.
type Info struct {
	// Mode is how the store runs, such as "serve" or "attach", and Role what it is now, such as
	// "active" or "standby".
	Mode string `json:"mode"`
	Role string `json:"role"`
	// Active is the address of the active store, as far as a standby knows it.
	Active string `json:"active,omitempty"`
	// Identity is the identity of the store's data.
	Identity string `json:"identity,omitempty"`
	// Version is the version of the program.
	Version string `json:"version,omitempty"`
	// Address is where clients find the store.
	Address string `json:"address,omitempty"`
	// Data says where the data is kept, such as "memory only" or a directory.
	Data string `json:"data,omitempty"`
	// Started is when the process began.
	Started time.Time `json:"started,omitzero"`
}

// State is what a store shows at one time. All durations are in milliseconds. Texts that clients choose are
// escaped, as package shown does it. As JSON it has MaxJSON bytes or less: what does not fit is counted as
// hidden.
type State struct {
	At time.Time `json:"at,omitzero"`
	// Info is what the program adds.
	Info Info `json:"info"`
	// Leases are the names that are leases: those without a holder first, then by name.
	// LeasesHidden is how many more the store has.
	Leases       []statestore.Lease `json:"leases"`
	LeasesHidden int                `json:"leasesHidden"`
	// Clients are the clients that are connected, or have left lately, by client id.
	Clients       []Client `json:"clients"`
	ClientsHidden int      `json:"clientsHidden"`
	// Timeline has the latest changes of holders, the latest first; TimelineHidden is how many of the
	// store's history do not fit.
	Timeline       []statestore.HolderChange `json:"timeline"`
	TimelineHidden int                       `json:"timelineHidden"`
	// StaleWrites are the latest writes that were refused for their fencing token, one of each of Clients, the
	// latest first.
	StaleWrites []StaleWrite `json:"staleWrites"`
	// Totals count since the store started.
	Totals Totals `json:"totals"`
}

// NewState returns a state of a store without leases and clients: an empty list is a list in JSON too.
func NewState() State {
	return State{
		Leases:      []statestore.Lease{},
		Clients:     []Client{},
		Timeline:    []statestore.HolderChange{},
		StaleWrites: []StaleWrite{},
		Totals:      Totals{RequestsBy: []RequestCount{}},
	}
}

// Client is a client of the store.
type Client struct {
	Client string `json:"client"`
	User   string `json:"user,omitempty"`
	Remote string `json:"remote,omitempty"`
	// Connected says that the client is connected, and Since when that began, or ended for Reason. An
	// attached store does not know its clients' connections: Since is when it forgot the client, if it has.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Reason    string    `json:"reason,omitempty"`
	// LastSeen is when its last request came, and Requests how many came.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	Requests uint64    `json:"requests"`
	// ClockOffsetMillis is how far its clock is ahead of the store's, as of its last request with a
	// plausible clock; nil: there was none in the last five minutes. The clock of a client goes on from the
	// latest timestamp that it has seen, so one that is behind seems less so.
	ClockOffsetMillis *int64 `json:"clockOffsetMillis,omitempty"`
	// ClockImplausible says that the last clock that it sent was not plausible, and came in the last five
	// minutes: it is more than a day off. It is wrong, or forged.
	ClockImplausible bool `json:"clockImplausible"`
	// TakeOvers counts how often a new connection of the client ended an open one. Flapping says
	// that this happens again and again: probably two programs use one client id.
	TakeOvers uint64 `json:"takeOvers"`
	Flapping  bool   `json:"flapping"`
	// Refused counts its requests that were refused. StaleWrites counts how many of these were
	// refused for their fencing token. Dropped counts its requests that did not reach the store.
	Refused     uint64 `json:"refused"`
	StaleWrites uint64 `json:"staleWrites"`
	Dropped     uint64 `json:"dropped"`
}

// StaleWrite is a write that the store refused for its fencing token: most likely of a client that
// held a lease once and does not know that it has lost it.
type StaleWrite struct {
	At      time.Time `json:"at"`
	Key     string    `json:"key"`
	Client  string    `json:"client"`
	User    string    `json:"user,omitempty"`
	Remote  string    `json:"remote,omitempty"`
	Verb    string    `json:"verb"`
	Refusal string    `json:"refusal"`
}

// The reasons why the connection of a client has ended.
const (
	// ReasonLeft: the client has sent a DISCONNECT.
	ReasonLeft = "left"
	// ReasonLost: the connection broke, or the client has closed it without a DISCONNECT.
	ReasonLost = "connection lost"
	// ReasonSilent: the client was silent for one and a half keep-alives.
	ReasonSilent = "silent for longer than its keep-alive"
	// ReasonIncomplete: the rest of a packet did not arrive in time.
	ReasonIncomplete = "left a packet incomplete"
	// ReasonTakenOver: another connection with the same client id has taken its place.
	ReasonTakenOver = "taken over"
	// ReasonSlow: the client did not read what was written to it.
	ReasonSlow = "did not read"
	// ReasonFault: the client has sent something forbidden.
	ReasonFault = "sent something forbidden"
	// ReasonStopped: the server has stopped.
	ReasonStopped = "server stopped"
	// ReasonForgotten: an attached store remembers as many clients as it may, and this one was
	// silent.
	ReasonForgotten = "forgotten"
)

// Totals count what happened since the store started.
type Totals struct {
	statestore.Totals
	Requests uint64 `json:"requests"`
	// RequestsBy counts requests by verb and outcome.
	RequestsBy []RequestCount `json:"requestsBy"`
	// Durations are those of requests, by verb.
	Durations []Durations `json:"-"`
	// StaleWrites counts writes that were refused for their fencing token.
	StaleWrites uint64 `json:"staleWrites"`
	TakeOvers   uint64 `json:"takeOvers"`
	// Flapping is how many client ids flap.
	Flapping int `json:"flapping"`
	// ClocksOff is how many clients have a plausible clock that is more than a second off the
	// store's, and ClocksImplausible how many sent one last that is not plausible; both of the clients
	// that have sent a clock in the last five minutes.
	ClocksOff         int `json:"clocksOff"`
	ClocksImplausible int `json:"clocksImplausible"`
}

// RequestCount is how many requests with one verb had one outcome, such as "SET" and "ok".
type RequestCount struct {
	Verb    string `json:"verb"`
	Outcome string `json:"outcome"`
	Count   uint64 `json:"count"`
}

// Durations are how long the requests of one verb took, from the reading of a request until its reply could
// leave. Buckets counts those of up to some seconds.
type Durations struct {
	Verb    string
	Count   uint64
	Seconds float64 // all together
	Buckets map[float64]uint64
}
