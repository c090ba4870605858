//go:build !linux

package growth

import "errors"

var errNotLinux = errors.New("growth is measured on Linux, which tells of the processor time of other processes")

func processorTime(int) (float64, error) { return 0, errNotLinux }

func resident(int) (float64, error) { return 0, errNotLinux }
