package activity

import (
	"sync"
	"time"
)

// Options bounds a Model. The zero value is right for most stores.
type Options struct {
	// Info is what the store is; SetInfo changes it.
	Info Info
	// Names bounds how many leases the model remembers. Default 10,000. Beyond that the one that
	// has been without an event for longest is forgotten, and those without a holder first.
	Names int
	// Clients bounds how many clients it remembers. Default 10,000.
	Clients int
	// Timeline bounds how many changes of holders it remembers. Default 500.
	Timeline int
	// StaleWrites bounds how many refused writes it remembers. Default 100.
	StaleWrites int
	// Shown bounds how many leases and how many clients a State has. Default 1,000.
	Shown int
}

// Model is what the events of a store amount to. Its methods are safe for concurrent use.
type Model struct {
	mu      sync.Mutex
	options Options
	info    Info
	totals  Totals
}

// New returns a model without events.
func New(options Options) *Model { return &Model{options: options, info: options.Info} }

// SetInfo changes what the State says about the store.
func (m *Model) SetInfo(info Info) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.info = info
}

// Observe takes an event. It does not block.
func (m *Model) Observe(event Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.totals.Events++
}

// State returns what the model knows at a time, which should not be before its last event.
func (m *Model) State(now time.Time) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return State{At: now, Info: m.info, Totals: m.totals}
}
