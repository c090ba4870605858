package admin

import (
	"sync"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
)

// Role is what this process does for the store.
type Role string

// The roles.
const (
	RoleLoading  Role = "loading"  // it reads the data of its store
	RoleStandby  Role = "standby"  // another process answers
	RoleActive   Role = "active"   // it answers requests
	RoleDetached Role = "detached" // it runs a store that has no connection to its broker
	RoleStopping Role = "stopping" // it was asked to stop
)

var roles = []Role{RoleLoading, RoleStandby, RoleActive, RoleDetached, RoleStopping}

// Store is what answers requests in this process. Functions are called from several goroutines at
// once, must return soon, and may be nil.
type Store struct {
	Identity string                // of its data
	State    func() activity.State // what the page shows of it
	Server   func() server.Stats   // of tenure serve
	Usage    func() server.Usage   // of tenure serve; of tenure attach only its field Store is set
	Attached func() attach.Stats   // of tenure attach
}

// stats returns what the functions of the store return; nil for those that it does not have.
func (s Store) stats() (usage *server.Usage, stats *server.Stats, attached *attach.Stats) {
	return call(s.Usage), call(s.Server), call(s.Attached)
}

// call returns what a function returns; nil if there is no function.
func call[T any](read func() T) *T {
	if read == nil {
		return nil
	}
	value := read()
	return &value
}

// Node is what this process knows of itself: its role, and the store that it runs. The process
// tells it. All methods may be called from several goroutines at once.
type Node struct {
	mu            sync.Mutex
	role          Role
	since         time.Time
	active        func() string // of a standby; may be nil
	store         Store
	address, data string
}

// NewNode returns a node that loads its data.
func NewNode() *Node { return &Node{role: RoleLoading, since: time.Now()} }

// Loading says that this process reads the data of its store.
func (n *Node) Loading() { n.become(RoleLoading, nil, Store{}) }

// StandBy says that another process answers. active returns its address, or an empty string if that
// is unknown; nil: it is never known. It must return at once.
func (n *Node) StandBy(active func() string) { n.become(RoleStandby, active, Store{}) }

// Serve says that this process runs the store.
func (n *Node) Serve(store Store) { n.become(RoleActive, nil, store) }

// Describe says where clients find the store, as a URL, and where its data is.
func (n *Node) Describe(address, data string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.address, n.data = address, data
}

// Stop says that this process was asked to stop.
func (n *Node) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role != RoleStopping {
		n.role, n.since = RoleStopping, time.Now()
	}
}

func (n *Node) become(role Role, active func() string, store Store) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role == RoleStopping {
		return
	}
	if n.role != role {
		n.since = time.Now()
	}
	n.role, n.active, n.store = role, active, store
}

// Probe takes each lock that a request of the store takes, so it does not return while one is stuck.
// It does not read the state of the page: a probe must not wait for pages.
func (n *Node) Probe() {
	_, store := n.status()
	store.stats()
}

// Status is what a process does, as JSON has it.
type Status struct {
	Role   Role      `json:"role"`
	Since  time.Time `json:"since"`            // of the role
	Active string    `json:"active,omitempty"` // host:port of the active process, if this one stands by and knows it
	Ready  bool      `json:"ready"`            // it answers requests
	Detail string    `json:"detail,omitempty"` // why it does not

	address, data string
}

// status returns the role, and the store, whose functions are nil if there is none.
func (n *Node) status() (Status, Store) {
	n.mu.Lock()
	status := Status{Role: n.role, Since: n.since, address: n.address, data: n.data}
	active, store := n.active, n.store
	n.mu.Unlock()
	// No lock is held while functions of others are called.
	switch {
	case status.Role == RoleActive && store.Attached != nil && !store.Attached().Attached:
		status.Role, status.Detail = RoleDetached,
			"the store has no connection to its broker, or has not begun to answer there"
	case status.Role == RoleActive:
		status.Ready = true
	case status.Role == RoleStandby:
		status.Detail = "this process stands by, and the active one is not known"
		if active != nil {
			status.Active = active()
		}
		if status.Active != "" {
			status.Detail = "this process stands by; " + status.Active + " is active"
		}
	case status.Role == RoleLoading:
		status.Detail = "the data of the store is being read"
	default:
		status.Detail = "this process was asked to stop"
	}
	return status, store
}
