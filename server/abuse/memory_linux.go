package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Lines of /proc/{pid}/status: the present resident memory and its peak.
const (
	resident = "VmRSS:"
	peak     = "VmHWM:"
)

// memoryOf returns a value of a process in bytes, or 0 if there is no such process.
func memoryOf(pid int, line string) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), line)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kilobytes << 10
}
