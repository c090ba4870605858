//go:build unix

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	idleLeases = 200
	// settled is how long the members have for what they write because leases were acquired.
	settled = 15 * time.Second
)

// measureIdle lets leases renew, and prints what each member has written to its disk meanwhile.
func (d *director) measureIdle(ctx context.Context) error {
	client, err := transport.Dial(ctx, d.stores(), transport.Options{ClientOptions: transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		return err
	}
	defer client.Close()
	tenures := make([]*lease.Tenure, idleLeases)
	for i := range tenures {
		l, err := lease.New(client, fmt.Sprintf("idle/%d", i), lease.Options{TTL: d.ttl})
		if err != nil {
			return err
		}
		if tenures[i], err = l.Acquire(ctx); err != nil {
			return err
		}
	}
	d.say("──▶", "%d leases of %v renew", idleLeases, d.ttl)
	if !sleep.For(ctx, settled) {
		return errInterrupted
	}
	before := make([]int, len(d.machines))
	for i, m := range d.machines {
		if before[i], err = m.written(); err != nil {
			return err
		}
	}
	if !sleep.For(ctx, d.idle) {
		return errInterrupted
	}
	for i, m := range d.machines {
		after, err := m.written()
		if err != nil {
			return err
		}
		d.say(m.name, "%.1f KB written a minute (%s)", float64(after-before[i])/1e3/d.idle.Minutes(), m.state)
	}
	for _, tenure := range tenures {
		if err := context.Cause(tenure.Context()); err != nil {
			return fmt.Errorf("a lease ended: %w", err)
		}
	}
	return nil
}

// written returns how many bytes the store of a machine has written to its disk.
func (m *machine) written() (int, error) {
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", m.store.PID()))
	if err != nil {
		return 0, fmt.Errorf("what a process writes is known on Linux only: %w", err)
	}
	_, after, _ := strings.Cut(string(io), "\nwrite_bytes: ")
	number, _, _ := strings.Cut(after, "\n")
	return strconv.Atoi(number)
}
