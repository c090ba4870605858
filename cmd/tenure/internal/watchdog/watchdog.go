// Package watchdog is the last fence of a leader: a device that resets the machine unless it is fed. A node that
// leads feeds it only while the lease lasts for longer than the device waits, or while no program acts. So
// when all software of the machine hangs, the machine is reset before another node leads.
//
// The device is Linux's: https://docs.kernel.org/watchdog/watchdog-api.html.
package watchdog

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
)

// Setting says whether there is a watchdog. The zero value is off.
type Setting struct {
	Device    string // empty: off
	automatic bool
}

// Set takes "off", a device without which no term starts, or "auto:" and a device that is used where it is there.
func (s *Setting) Set(text string) error {
	*s = Setting{}
	if text == "off" {
		return nil
	}
	if s.Device, s.automatic = strings.CutPrefix(text, "auto:"); !strings.HasPrefix(s.Device, "/") {
		return errors.New("give off, a device such as /dev/watchdog, or auto:/dev/watchdog")
	}
	return nil
}

// Open opens the watchdog of a term; nil: there is none.
func (s *Setting) Open(ttl time.Duration, logger *slog.Logger) (*Dog, error) {
	if s.Device == "" {
		return nil, nil
	}
	dog, err := open(s.Device, ttl)
	if err != nil && s.automatic {
		logger.Warn("leading without a watchdog", "error", err)
		return nil, nil
	}
	return dog, err
}

// LeastTTL is the shortest TTL of a lease for which a device can be fed: devices count in seconds.
const LeastTTL = 3 * time.Second

// Timeout is how long a device waits for a lease with this TTL, if it can wait for so short a time.
func Timeout(ttl time.Duration) time.Duration { return max(1, ttl/4/time.Second) * time.Second }

// A Dog is an open device. It resets the machine when Timeout has passed since it was opened or fed, also after
// its process has ended, unless it was closed.
type Dog struct {
	File    *os.File
	Timeout time.Duration
}

// open opens a device, which begins to wait: for a quarter of the TTL, and a second at least.
func open(device string, ttl time.Duration) (dog *Dog, err error) {
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	dog = &Dog{File: file}
	seconds, err := setTimeout(file, int(Timeout(ttl)/time.Second))
	dog.Timeout = time.Duration(seconds) * time.Second
	switch {
	case err != nil:
		err = fmt.Errorf("its time cannot be set: %w", err)
	case dog.Timeout > ttl/2:
		err = fmt.Errorf("it waits for %v at least: take a TTL of twice that", dog.Timeout)
	default:
		return dog, nil
	}
	return nil, errors.Join(fmt.Errorf("watchdog %s: %w", device, err), dog.Close())
}

// Interval is the pause between two calls of Feed.
func (d *Dog) Interval() time.Duration { return d.Timeout / 20 }

// Feed makes the device wait for Timeout again. left is how long the lease lasts without another renewal: Feed
// does nothing if the device would wait for longer than that.
func (d *Dog) Feed(left time.Duration) error {
	if left < d.Timeout {
		return nil
	}
	_, err := d.File.Write([]byte{0})
	return err
}

// Close stops the device: no program acts any more. The letter V is what the kernel calls a magic close.
func (d *Dog) Close() error {
	_, err := d.File.Write([]byte("V"))
	return errors.Join(err, d.File.Close())
}
