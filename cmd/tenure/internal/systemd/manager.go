// Package systemd tells the service manager systemd when the process is ready, what it does, when it
// stops, and, as a watchdog, that it still works: the protocol of sd_notify(3).
//
// It is not the library of CoreOS, because that one reads the address from the environment for each
// message, where child processes would find it too, and writes without a bound.
package systemd

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

const (
	// writeTimeout bounds a message: systemd may be stopped, or too busy to read.
	writeTimeout = time.Second
	// maxStatus is how long a status may be, in bytes: systemctl shows one line.
	maxStatus = 256
	// leastInterval bounds how often Watch asks, however short the time is that systemd gives.
	leastInterval = 10 * time.Millisecond
)

// Manager is the service manager of this process. The zero value is a manager that is not
// there: all methods do nothing. It is safe for concurrent use.
type Manager struct {
	timeout time.Duration // of the watchdog; 0: there is none
	logger  *slog.Logger

	mu   sync.Mutex // held while a message is written, for writeTimeout at most
	conn *net.UnixConn
	lost bool // a message could not be written; the log says so once
}

// FromEnvironment returns the manager that the environment names, and removes the variables from the
// environment: a child process must not speak for this one. Without a manager, or if it cannot be
// reached, the result does nothing; the log says why. The caller calls Close at the end.
func FromEnvironment(logger *slog.Logger) *Manager {
	m := &Manager{logger: logger}
	path := os.Getenv("NOTIFY_SOCKET")
	timeout, process := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	if path == "" {
		return m
	}
	// A path that begins with @ is in Linux' abstract namespace; package net knows that.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		logger.Warn("cannot reach systemd: if the unit says Type=notify, systemd will stop this process", "socket", path, "error", err)
		return m
	}
	m.conn = conn
	if process == "" || process == strconv.Itoa(os.Getpid()) { // otherwise it is for the parent
		m.timeout, _ = time.ParseDuration(timeout + "us") // without one, 0
	}
	return m
}

// Ready says that the process does its work from now on, and what that is. Later calls change the
// status.
func (m *Manager) Ready(status string) { m.send("READY=1\nSTATUS=" + line(status)) }

// Status says what the process does. It is a line of "systemctl status".
func (m *Manager) Status(status string) { m.send("STATUS=" + line(status)) }

// Stopping says that the process ends, because it was asked to.
func (m *Manager) Stopping() { m.send("STOPPING=1\nSTATUS=stopping") }

// Watch tells the watchdog that the process works, until ctx ends: each time that probe has
// returned. While it does not, the watchdog hears nothing, and kills the process after the time of
// WatchdogSec. Without a watchdog Watch returns at once.
func (m *Manager) Watch(ctx context.Context, probe func()) {
	if m.timeout <= 0 {
		return
	}
	// A third: one message may be late without harm.
	ticker := time.NewTicker(max(m.timeout/3, leastInterval))
	defer ticker.Stop()
	for {
		probe()
		m.send("WATCHDOG=1")
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Close ends the connection. Later messages are not sent.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

func (m *Manager) send(message string) {
	m.mu.Lock()
	var err error
	if m.conn != nil {
		_ = m.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails where Write does
		_, err = m.conn.Write([]byte(message))
	}
	first := err != nil && !m.lost
	m.lost = err != nil
	m.mu.Unlock()
	if first {
		m.logger.Warn("cannot tell systemd what this process does", "error", err)
	}
}

// line returns text as one line that is not too long: a second line would be another message.
func line(text string) string {
	if text = output.Clean(text); len(text) > maxStatus {
		text = strings.ToValidUTF8(text[:maxStatus], "") + "…"
	}
	return text
}
