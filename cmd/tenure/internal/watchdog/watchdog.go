// Package watchdog is the last fence of a leader: a device that resets the machine unless it is fed. A node that
// leads feeds it only while the lease lasts for longer than the device waits, or while no program acts. So
// when all software of the machine hangs, the machine is reset before another node leads.
//
// The device is Linux's: https://docs.kernel.org/watchdog/watchdog-api.html.
package watchdog

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Setting says whether there is a watchdog. It is a flag: "off", a device that must be there, or "auto:" and a
// device that is used if it is there. The zero value is off.
type Setting struct {
	Device    string // empty: off
	Automatic bool
}

// String implements pflag.Value.
func (s *Setting) String() string {
	switch {
	case s.Device == "":
		return "off"
	case s.Automatic:
		return "auto:" + s.Device
	}
	return s.Device
}

// Set implements pflag.Value.
func (s *Setting) Set(text string) error {
	device, automatic := strings.CutPrefix(text, "auto:")
	switch {
	case text == "off":
		device = ""
	case !strings.HasPrefix(device, "/"):
		return errors.New("give off, a device such as /dev/watchdog, or auto:/dev/watchdog")
	}
	*s = Setting{device, automatic}
	return nil
}

// Type implements pflag.Value.
func (s *Setting) Type() string { return "device" }

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

// Open opens the device, which begins to wait. The device waits for a quarter of the TTL, and a second at least.
// Without a device it returns nil: if the setting is off, or with the error if it is automatic.
func (s *Setting) Open(ttl time.Duration) (dog *Dog, required bool, err error) {
	if s.Device == "" {
		return nil, false, nil
	}
	dog, err = open(s.Device, ttl)
	if err != nil {
		return nil, !s.Automatic, fmt.Errorf("watchdog %s: %w", s.Device, err)
	}
	return dog, !s.Automatic, nil
}

func open(device string, ttl time.Duration) (dog *Dog, err error) {
	if ttl < LeastTTL {
		return nil, fmt.Errorf("the TTL %v is too short: devices count in seconds, so take %v at least", ttl, LeastTTL)
	}
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	dog = &Dog{File: file}
	seconds, err := setTimeout(file, int(Timeout(ttl)/time.Second))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("its time cannot be set: %w", err), dog.Close())
	}
	dog.Timeout = time.Duration(seconds) * time.Second
	if dog.Timeout > ttl/2 {
		return nil, errors.Join(fmt.Errorf("it waits for %v at least: take a TTL of twice that", dog.Timeout), dog.Close())
	}
	return dog, nil
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
