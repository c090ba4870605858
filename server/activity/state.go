package activity

import "time"

// Info is what a store is. The model does not know that: the program that runs the store does, and
// adds it to a State.
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
	// Started is when the store began to answer.
	Started time.Time `json:"started,omitzero"`
}

// State is what a model knows at one time. It shares nothing with the model. All durations are in
// milliseconds. Texts that clients choose are escaped, as Printable does it. As JSON it has MaxJSON bytes
// or less: what does not fit is counted as hidden.
type State struct {
	At time.Time `json:"at,omitzero"`
	// Info is empty in the State of a Model.
	Info Info `json:"info"`
	// Leases are the names that are leases: those without a holder first, then by name.
	// LeasesHidden is how many more the store has, and LeasesForgotten how often the model has
	// dropped one to keep within its bounds.
	Leases          []Lease `json:"leases"`
	LeasesHidden    int     `json:"leasesHidden"`
	LeasesForgotten uint64  `json:"leasesForgotten"`
	// Clients are the clients that have sent something lately, by client id.
	Clients          []Client `json:"clients"`
	ClientsHidden    int      `json:"clientsHidden"`
	ClientsForgotten uint64   `json:"clientsForgotten"`
	// Timeline has the latest changes of holders, the latest first; TimelineForgotten is how many
	// older ones the model has dropped.
	Timeline          []Change `json:"timeline"`
	TimelineForgotten uint64   `json:"timelineForgotten"`
	// StaleWrites are the latest writes that were refused for their fencing token, the latest first.
	StaleWrites []StaleWrite `json:"staleWrites"`
	// Totals count since the model was made.
	Totals Totals `json:"totals"`
}

// Lease is a name that one client at a time holds.
type Lease struct {
	Name string `json:"name"`
	// Turn is the place of the lease where each user in turn has one, and of each user each client, the
	// lease that the model has known for longest first. What can show some leases only should show
	// those with the lowest turns: they belong to many clients, and they stay the same. A State has
	// at least the leases with turns below a tenth of Options.Shown.
	Turn int `json:"-"`
	// Held says that a client holds the lease.
	Held bool `json:"held"`
	// Holder is the holder's name, and Client its client id; both of the last holder if Held is
	// false. They are empty, and TTLMillis is 0, if the store has only told other clients that the
	// lease is held.
	Holder string `json:"holder"`
	Client string `json:"client"`
	// Since is when the holder acquired the lease, and Token its fencing token: the version of that
	// SET, or of the next one, see Event.Bound. Known says that the store has seen the acquisition;
	// otherwise Since is the first renewal that it saw, and Token is empty.
	Since time.Time `json:"since"`
	Token string    `json:"token,omitempty"`
	Known bool      `json:"known"`
	// TTLMillis is the lifetime, LeftMillis what is left of it, and Deadline its end. JSON leaves out a
	// LeftMillis of 0, and so do the events of the page.
	TTLMillis  int64     `json:"ttlMillis"`
	LeftMillis int64     `json:"leftMillis,omitzero"`
	Deadline   time.Time `json:"deadline"`
	// Renewals counts the renewals of this holder. LastRenewal is when the last one came, or the
	// acquisition, and RenewEveryMillis the usual time between two; 0: not known yet.
	Renewals         uint64    `json:"renewals"`
	LastRenewal      time.Time `json:"lastRenewal"`
	RenewEveryMillis int64     `json:"renewEveryMillis"`
	// Missed counts renewals of this holder that did not come when they usually do. Late says that
	// one is missing now.
	Missed uint64 `json:"missed"`
	Late   bool   `json:"late"`
	// Value is the value; empty unless values were asked for.
	Value string `json:"value,omitempty"`
	// NoHolderSince is when the lease became free, if Held is false, and NoHolderMillis how long ago.
	NoHolderSince  time.Time `json:"noHolderSince,omitzero"`
	NoHolderMillis int64     `json:"noHolderMillis,omitzero"`
	// Changes counts how often another holder than the one before has acquired the lease. LastChange
	// is the last entry of the lease in the timeline, older ones of which the model may have dropped;
	// nil: none.
	Changes    uint64  `json:"changes"`
	LastChange *Change `json:"lastChange,omitempty"`
	// Waiting are the clients that wait for the lease or watch it: those that ask for it before those that
	// only watch, and the first ones first. WaitingHidden is how many more there are, or 1 if the model
	// does not know that.
	Waiting       []Waiter `json:"waiting"`
	WaitingHidden int      `json:"waitingHidden"`
}

// Waiter is a client that wants a lease, or watches it.
type Waiter struct {
	Client string    `json:"client"`
	Since  time.Time `json:"since"`
	// Watching says that the client is notified of changes. Attempts counts how often it has tried
	// to acquire the lease since another client holds it; LastAttempt is the last time.
	Watching    bool      `json:"watching"`
	Attempts    uint64    `json:"attempts"`
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// Bids says that the client asks the holder to hand over, and Rank is the rank that it names;
	// a lower rank is better.
	Bids bool `json:"bids"`
	Rank *int `json:"rank,omitempty"`
}

// Cause is why a lease changed.
type Cause string

// The causes.
const (
	// CauseAcquired: a client acquired a lease that had no holder before, as far as the model knows.
	CauseAcquired Cause = "acquired"
	// CauseReleased: the holder has released the lease.
	CauseReleased Cause = "released"
	// CauseExpired: the holder has not renewed the lease in time.
	CauseExpired Cause = "expired"
	// CauseDeleted: the holder's client has deleted the key, whatever its value was.
	CauseDeleted Cause = "deleted"
	// CauseWill: the connection of the holder was lost, and its Will has released the lease.
	CauseWill Cause = "will"
	// CauseForced: another client has deleted or overwritten the lease.
	CauseForced Cause = "forced"
	// CauseOverwritten: the holder's client has replaced the value by another one.
	CauseOverwritten Cause = "overwritten"
	// CauseUnknown: the model has missed the event.
	CauseUnknown Cause = "unknown"
)

// Change is the end of one holder's lease and, if there was one, the beginning of the next: a
// hand-over if the first was released, and a failover if not.
type Change struct {
	Name string `json:"name"`
	// Cause is why the lease of From ended.
	Cause Cause `json:"cause"`
	// From and To are the names of the holders. From is empty at the first acquisition, and To while
	// no client has acquired the lease since.
	From string `json:"from"`
	To   string `json:"to"`
	// By is the client that caused the end: the holder's, or the one that forced it; empty for an
	// expiry. ByUser and ByRemote are its user and address.
	By       string `json:"by,omitempty"`
	ByUser   string `json:"byUser,omitempty"`
	ByRemote string `json:"byRemote,omitempty"`
	// Forced is why it was forced, as that client told.
	Forced string `json:"forced,omitempty"`
	// Ended is when the lease of From ended, and Began when the lease of To began. GapMillis is the time
	// between: until now, if To is empty.
	Ended     time.Time `json:"ended,omitzero"`
	Began     time.Time `json:"began,omitzero"`
	GapMillis int64     `json:"gapMillis"`
	// HeldMillis is how long From had the lease; 0: not known.
	HeldMillis int64 `json:"heldMillis"`
	// Repeated is how many earlier releases by the same holder this one stands for, which no other
	// client has followed.
	Repeated uint64 `json:"repeated"`

	number uint64 // in the timeline
}

// isRoutine reports whether a holder has released its lease, and no other has it since.
func (h *Change) isRoutine() bool {
	return h.Cause == CauseReleased && (h.Began.IsZero() || h.To == h.From)
}

// latest returns when the change began, or ended.
func (h *Change) latest() time.Time {
	if h.Began.After(h.Ended) {
		return h.Began
	}
	return h.Ended
}

// Client is a client of the store.
type Client struct {
	Client string `json:"client"`
	User   string `json:"user,omitempty"`
	Remote string `json:"remote,omitempty"`
	// Connected says that the client is connected, as far as the store knows, and Since when that
	// began, or ended for Reason.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	Reason    string    `json:"reason,omitempty"`
	// LastSeen is when its last request came, and Requests how many came.
	LastSeen time.Time `json:"lastSeen,omitzero"`
	Requests uint64    `json:"requests"`
	// ClockOffsetMillis is how far its clock is ahead of the store's, as of its last request with a
	// plausible clock; nil: there was none in the last five minutes. See Event.ClockOffset for what that
	// cannot show.
	ClockOffsetMillis *int64 `json:"clockOffsetMillis,omitempty"`
	// ClockImplausible says that the last clock that it sent was not plausible, and came in the last five
	// minutes: the store refused it as too far ahead, or it is more than a day off. It is wrong, or
	// forged.
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

	number uint64
}

// Totals count what happened since the model was made.
type Totals struct {
	Events     uint64 `json:"events"`
	LostEvents uint64 `json:"lostEvents"` // that the model was not told
	Requests   uint64 `json:"requests"`
	// RequestsBy counts requests by verb and outcome.
	RequestsBy []RequestCount `json:"requestsBy"`
	// Acquired and Renewed count leases; EndsBy counts the ends of leases by cause.
	Acquired uint64           `json:"acquired"`
	Renewed  uint64           `json:"renewed"`
	Missed   uint64           `json:"missed"`
	EndsBy   map[Cause]uint64 `json:"endsBy"`
	// StaleWrites counts writes that were refused for their fencing token.
	StaleWrites uint64 `json:"staleWrites"`
	Connections uint64 `json:"connections"`
	TakeOvers   uint64 `json:"takeOvers"`
	Refused     uint64 `json:"refusedConnections"`
	Dropped     uint64 `json:"droppedRequests"`
	// Held is how many leases have a holder now, and Free how many have none, as far as the model
	// remembers them. Flapping is how many client ids flap.
	Held     int `json:"held"`
	Free     int `json:"free"`
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
