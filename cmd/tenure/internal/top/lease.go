package top

import (
	"context"
	"slices"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/statestore"
)

// Lease is a lease at one time.
type Lease struct {
	// Name is the name of the lease, and Holder the name of the holder or of the last one. Either may have
	// any bytes: see Snapshot.Report.
	Name         string `json:"name,omitempty"`
	NameBase64   []byte `json:"nameBase64,omitempty"`
	Held         bool   `json:"held"`
	Holder       string `json:"holder,omitempty"`
	HolderBase64 []byte `json:"holderBase64,omitempty"`
	// HeldFor is how long the holder has the lease. AtLeast says that it was held before it was first
	// seen.
	HeldFor output.Millis `json:"heldForMillis,omitzero"`
	AtLeast bool          `json:"atLeast,omitempty"`
	// Left is how much of TTL is left; negative: it should have ended. Both are 0 if TTL is not known.
	Left output.Millis `json:"leftMillis,omitzero"`
	TTL  output.Millis `json:"ttlMillis,omitzero"`
	// Estimated says that TTL was estimated: six times the time between two renewals, as package
	// lease has by default.
	Estimated bool `json:"estimated,omitempty"`
	// NoHolder is how long no client has held the lease; 0: not known.
	NoHolder output.Millis `json:"noHolderMillis,omitzero"`
	// Waiting counts the clients that wait; nil: not known.
	Waiting *int `json:"waiting,omitempty"`
	// Problem is why nothing newer is known; empty: nothing is wrong.
	Problem string `json:"problem,omitempty"`

	// calm says that the last holder has released the lease and that no client waits for it: a job
	// that is done is no fault.
	calm bool
}

// Snapshot is what a source knows at one time.
type Snapshot struct {
	At     time.Time `json:"at"`
	Leases []Lease   `json:"leases"`
	// Hidden is how many more leases there are.
	Hidden int `json:"hidden,omitempty"`
	// Title says where the leases are, and Problem why nothing newer is known.
	Title   string `json:"title"`
	Problem string `json:"problem,omitempty"`
}

// Only returns the snapshot with the leases of these names, in this order; no names: all leases.
func (s Snapshot) Only(names []string) Snapshot {
	if len(names) == 0 {
		return s
	}
	all := s.Leases
	hidden := s.Hidden
	s.Leases, s.Hidden = make([]Lease, 0, len(names)), 0
	for _, name := range names {
		at := slices.IndexFunc(all, func(l Lease) bool { return l.Name == name || l.Name == shown.Printable(name) })
		switch {
		case at >= 0:
			s.Leases = append(s.Leases, all[at])
		case hidden > 0:
			s.Leases = append(s.Leases, Lease{Name: name, Problem: "not among the leases on the page"})
		default:
			s.Leases = append(s.Leases, Lease{Name: name, Problem: "the store does not know it"})
		}
	}
	return s
}

// Report returns the snapshot for JSON: names that are not UTF-8 are in the fields with Base64.
func (s Snapshot) Report() Snapshot {
	s.Leases = slices.Clone(s.Leases)
	for i := range s.Leases {
		lease := &s.Leases[i]
		lease.Name, lease.NameBase64 = inBase64(lease.Name)
		lease.Holder, lease.HolderBase64 = inBase64(lease.Holder)
	}
	return s
}

// inBase64 returns a name as text, or as bytes for base64.
func inBase64(name string) (string, []byte) {
	if text, other := output.Text(name); text == nil {
		return "", other
	}
	return name, nil
}

// Source is where leases come from.
type Source interface {
	// Run keeps the source up to date until ctx ends, or until nothing newer can come.
	Run(ctx context.Context) error
	// Ready is closed when there is something to show.
	Ready() <-chan struct{}
	// Snapshot returns what is known at a time. It does not block.
	Snapshot(now time.Time) Snapshot
}

// fromState returns a lease of a status page, age after the page was made.
func fromState(l statestore.Lease, at time.Time, age time.Duration) Lease {
	lease := Lease{
		Name: l.Name, Held: l.Held, Holder: l.Holder,
		TTL: output.Millis{Duration: time.Duration(l.TTLMillis) * time.Millisecond},
	}
	waiting := len(l.Waiting) + l.WaitingHidden
	lease.Waiting = &waiting
	if l.Held {
		lease.HeldFor.Duration = max(at.Sub(l.Since), 0) + age
		lease.Left.Duration = time.Duration(l.LeftMillis)*time.Millisecond - age
	} else {
		lease.calm = waiting == 0 && l.LastChange != nil &&
			(l.LastChange.Cause == statestore.CauseReleased || l.LastChange.Cause == statestore.CauseDeleted)
		lease.NoHolder.Duration = time.Duration(l.NoHolderMillis)*time.Millisecond + age
	}
	return lease
}
