package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Lines of /proc/{pid}/status: what a process has now, and what it had at most.
const (
	resident = "VmRSS:"
	peak     = "VmHWM:"
)

// memoryOf returns so many bytes of a process, or 0 if there is no such process.
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
