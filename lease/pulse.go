package lease

import (
	"context"
	"sync"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// pulse looks at the clock for the tenures of one client that need it equally often. Go's timers stand still
// while the machine is suspended, and thousands of timers cost more than all that tenures do beside.
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
	if t.pulse != nil {
		return
	}
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

// run is a task of the client.
func (p *pulse) run(client context.Context) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	var tenures []*Tenure
	for {
		select {
		case <-p.stop:
			return
		case <-client.Done():
			return
		case <-tick.C:
		}
		pulses.Lock()
		tenures = append(tenures[:0], p.tenures...)
		pulses.Unlock()
		for _, t := range tenures {
			_, _ = t.remaining()
		}
		clear(tenures)
	}
}
