package steady

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// machine has the clocks of a machine that can be suspended.
type machine struct {
	Reading
	real time.Duration
}

func (m *machine) run(d time.Duration) {
	m.real += d
	m.Monotonic, m.Wall, m.Boot = m.Monotonic+d, m.Wall+d, m.Boot+d
}

func (m *machine) suspend(d time.Duration) {
	m.real += d
	m.Wall, m.Boot = m.Wall+d, m.Boot+d
}

func (m *machine) read() Reading { return m.Reading }

func (m *machine) set(step time.Duration) { m.Wall += step }

func TestInvariant3SystemClockCountsSuspendedTimeAndNoStepMoreThanItMust(t *testing.T) {
	const s, hour = time.Second, time.Hour
	for name, test := range map[string]struct {
		boots bool
		// what happens while the clock is read before and after
		before, between func(m *machine)
		want            time.Duration // beyond real time
	}{
		"a suspend":                   {true, nil, func(m *machine) { m.suspend(s) }, 0},
		"a step forward":              {true, nil, func(m *machine) { m.set(hour) }, 0},
		"a step back":                 {true, nil, func(m *machine) { m.set(-hour) }, 0},
		"a suspend, by the wall":      {false, nil, func(m *machine) { m.suspend(s) }, 0},
		"a step forward, by the wall": {false, nil, func(m *machine) { m.set(hour) }, hour}, // it may be a suspend
		"a step back, by the wall":    {false, nil, func(m *machine) { m.set(-hour) }, 0},
		"a step forward, and the boot clock fails later": {true, func(m *machine) { m.set(hour) },
			func(m *machine) { m.BootOK = false }, 0},
		"a step back, and the boot clock fails later": {true, func(m *machine) { m.set(-hour) },
			func(m *machine) { m.BootOK = false }, 0},
		"the boot clock fails, in a suspend": {true, func(m *machine) { m.set(-hour) },
			func(m *machine) { m.BootOK = false; m.suspend(s) }, 0},
		"the boot clock comes back after a suspend": {true, func(m *machine) { m.set(-hour); m.BootOK = false },
			func(m *machine) { m.suspend(s); m.run(s); m.BootOK = true }, 0},
		"the boot clock comes back, and there is a suspend": {true, func(m *machine) { m.BootOK = false },
			func(m *machine) { m.BootOK = true; m.suspend(s) }, 0},
		"the boot clock was forbidden at the start": {false, func(m *machine) { m.BootOK = true; m.set(-hour) },
			func(m *machine) { m.suspend(s) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m, clock := &machine{Reading: Reading{BootOK: test.boots}}, &Clock{Boots: test.boots}
			m.run(s)
			clock.Read(m.read)
			if test.before != nil {
				test.before(m)
			}
			m.run(s)
			from, fromReal := clock.Read(m.read), m.real
			m.run(s)
			test.between(m)
			m.run(s)
			if got := clock.Read(m.read) - from - (m.real - fromReal); got != test.want {
				t.Errorf("it shows %v more than has passed, want %v", got, test.want)
			}
		})
	}
}

// A deadline is late by what the clock shows too little. Whatever a wall clock does, that is the most that
// it is set back by, and nothing where there is a clock that counts from boot.
func TestInvariant3SystemClockNeverGoesBackAndShowsNoLessThanRuns(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		boots := seed%2 == 0
		m, clock := &machine{Reading: Reading{BootOK: boots}}, &Clock{Boots: boots}
		forth := seed%4 < 2 // no step back
		last, lastReal, lastRuns := time.Duration(0), time.Duration(0), time.Duration(0)
		for range 100 {
			d := time.Duration(random.Int64N(int64(10 * time.Second)))
			switch random.IntN(6) {
			case 0:
				m.suspend(d)
			case 1:
				m.set(d)
			case 2:
				if !forth {
					m.set(-d)
				}
			case 3:
				m.BootOK = m.BootOK && random.IntN(4) > 0 || boots && random.IntN(4) == 0
			default:
				m.run(d)
			}
			if random.IntN(2) == 0 {
				continue
			}
			now := clock.Read(m.read)
			shows, runs := now-last, m.Monotonic-lastRuns
			if shows < runs || (forth || boots && !clock.bootless.Load()) && shows < m.real-lastReal-leastSuspend {
				t.Fatalf("seed %d: it shows that %v passed; %v did, of which the machine ran %v", seed, shows, m.real-lastReal, runs)
			}
			last, lastReal, lastRuns = now, m.real, m.Monotonic
		}
	}
}

// Thousands of tenures read the clock at once, and none may see it go back, not even while the machine wakes.
func TestInvariant3ReadAtOnceSystemClockNeverGoesBack(t *testing.T) {
	for _, boots := range []bool{true, false} {
		clock := Clock{Boots: boots}
		start := time.Now()
		var suspended atomic.Int64
		read := func() Reading {
			away := time.Duration(suspended.Load())
			now := time.Since(start)
			return Reading{Monotonic: now, Wall: now + away, Boot: now + away, BootOK: boots}
		}
		var reading sync.WaitGroup
		for range 8 {
			reading.Go(func() {
				for last := time.Duration(0); time.Since(start) < 50*time.Millisecond; {
					now := clock.Read(read)
					if now < last {
						t.Errorf("it goes back by %v", last-now)
					}
					last = now
				}
			})
		}
		for range 4 {
			suspended.Add(int64(time.Hour))
			time.Sleep(time.Millisecond)
		}
		await.Done(reading.Wait)
		if got := clock.Read(read); got < 4*time.Hour {
			t.Errorf("it shows %v after four hours", got)
		}
	}
}
