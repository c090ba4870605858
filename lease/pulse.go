package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// pulse looks at the clock for the tenures of one client that need it equally often, and at the store for those
// that wait for a reply. Go's timers stand still while the machine is suspended, and thousands of timers cost more
// than all that tenures do beside.
type pulse struct {
	pulseKey
	tenures []*Tenure // guarded by pulses
	stop    chan struct{}
}

type pulseKey struct {
	client *transport.Client
	every  time.Duration
}

// pulses has those with tenures.
var pulses = struct {
	sync.Mutex
	of map[pulseKey]*pulse
}{of: make(map[pulseKey]*pulse)}

// joinPulse lets the clock be looked at for a tenure, until leavePulse.
func (t *Tenure) joinPulse() {
	key := pulseKey{t.lease.client, t.lease.options.lookEvery()}
	pulses.Lock()
	defer pulses.Unlock()
	if t.pulse = pulses.of[key]; t.pulse == nil {
		t.pulse = &pulse{pulseKey: key, stop: make(chan struct{})}
		pulses.of[key] = t.pulse
		t.lease.client.Go(t.pulse.run) // or the client is closed, and the tenure ends
	}
	t.seat = len(t.pulse.tenures)
	t.pulse.tenures = append(t.pulse.tenures, t)
}

func (t *Tenure) leavePulse() {
	pulses.Lock()
	defer pulses.Unlock()
	p := t.pulse
	if p == nil {
		return
	}
	last := len(p.tenures) - 1
	p.tenures[t.seat], p.tenures[last].seat = p.tenures[last], t.seat
	p.tenures[last], p.tenures = nil, p.tenures[:last]
	if last == 0 {
		delete(pulses.of, p.pulseKey)
		close(p.stop)
	}
}

// run is a task of the client. It looks at all tenures when another store answers. The system's clock leaves Go's
// timers behind only by a suspend, so after its first round run looks at the tenures that go by that clock after a
// suspend only.
func (p *pulse) run(client context.Context) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	_, replaced := p.client.Store()
	for before := time.Duration(-1); ; {
		select {
		case <-p.stop:
			return
		case <-client.Done():
			return
		case <-replaced:
			before = -1
		case <-tick.C:
		}
		_, replaced = p.client.Store()
		SystemClock()
		suspended := system.Suspended()
		for _, t := range p.members() { // each has read its clock after it joined
			if suspended != before || !t.lease.options.systemClock {
				_, _ = t.remaining()
			}
		}
		before = suspended
	}
}

func (p *pulse) members() []*Tenure {
	pulses.Lock()
	defer pulses.Unlock()
	return slices.Clone(p.tenures)
}
