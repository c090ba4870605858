package server

import (
	"time"

	"github.com/eclipse/paho.golang/paho"
)

// LargestPacket returns how large a packet an attached store sends to a broker that
// takes packets of size bytes.
func LargestPacket(size uint32) (int, error) {
	l := &attachedLink{keepAlive: attachedKeepAlive}
	err := l.accept(&paho.ConnackProperties{RetainAvailable: true, MaximumPacketSize: &size})
	return l.maxPacket, err
}

// Alone lets a store that is not served yet believe that nobody will object to it.
func (a *Attached) Alone() { a.patience = 0 }

// Narrow lets a store that is not served yet announce another Receive Maximum.
func (a *Attached) Narrow(receiveMaximum uint16) { a.receiveMaximum = receiveMaximum }

// Clock gives a store that is not served yet another clock for how long it knows its clients.
func (a *Attached) Clock(now func() time.Time) { a.roster.now = now }

// Impatient lets a store that is not served yet wait for one that is silent for d only.
func (a *Attached) Impatient(d time.Duration) { a.silence = func(uint16) time.Duration { return d } }

// Busy lets the request that a store has begun with take until resume is called.
func (a *Attached) Busy() (resume func()) {
	a.roster.mu.Lock()
	return a.roster.mu.Unlock
}
