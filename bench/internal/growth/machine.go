package growth

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v4/mem"
)

// need is what a size needs.
type need struct {
	files  int   // open in the process of the clients, and as many in the server
	memory int64 // bytes, of both processes and the kernel
}

// Machine is what this machine has.
type Machine struct {
	// Files is how many files a process may have open, and Memory how many bytes are free.
	Files  uint64
	Memory int64
	// Ports is how many connections a client may have to one address.
	Ports int
}

const (
	// spareFiles is what the processes have open beside connections.
	spareFiles = 64
	// usable is the share of the free memory that a size may need, in per cent: the rest is for errors of
	// the estimate and for other programs.
	usable = 80
)

// ThisMachine returns what this machine has now.
func ThisMachine(ctx context.Context) (Machine, error) {
	memory, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return Machine{}, err
	}
	return Machine{Files: openFiles(), Memory: min(int64(memory.Available), containerMemory()), Ports: ports()}, nil
}

// containerMemory returns what the control group of this process leaves, or the largest number if
// there is no limit or no control group.
func containerMemory() int64 {
	limit, ok := readNumber("/sys/fs/cgroup/memory.max")
	used, known := readNumber("/sys/fs/cgroup/memory.current")
	if !ok || !known {
		return math.MaxInt64
	}
	return max(0, limit-used)
}

// ports returns how many local ports the system has for outgoing connections.
func ports() int {
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if fields := strings.Fields(string(content)); err == nil && len(fields) == 2 {
		first, err1 := strconv.Atoi(fields[0])
		last, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			return last - first + 1
		}
	}
	return 16_384 // the range of IANA, which other systems have
}

func readNumber(path string) (int64, bool) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	number, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	return number, err == nil // "max" is no limit
}

// holds returns an error that says what is missing.
func (m Machine) holds(n need) error {
	files := n.files + spareFiles
	switch {
	case uint64(files) > m.Files:
		return fmt.Errorf("a process needs %d open files and may have %d: ulimit -n %d", files, m.Files, files)
	case n.files > m.Ports:
		return fmt.Errorf("%d connections need a port each, and the system has %d: see net.ipv4.ip_local_port_range", n.files, m.Ports)
	case n.memory > m.Memory/100*usable:
		return fmt.Errorf("about %d MB of memory are needed, and %d %% of the free memory are %d MB", n.memory>>20, usable, m.Memory/100*usable>>20)
	}
	return nil
}
