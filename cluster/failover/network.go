//go:build unix

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const (
	loopback   = "loopback"
	namespaces = "namespaces"
)

const (
	bridge        = "tenure"
	bridgeAddress = "10.99.87.254" // of the director
)

// network is what connects the machines.
type network struct {
	isolated bool   // each machine is in a network namespace of its own
	reason   string // or why not
	made     []string
}

// newNetwork makes the network. The caller calls remove, also after an error.
func newNetwork(kind string) (*network, error) {
	n := new(network)
	err := n.check()
	switch {
	case kind == namespaces || kind == "" && err == nil:
		n.isolated = true
		if err == nil {
			err = n.make()
		}
		return n, err
	case kind == "":
		n.reason = err.Error()
	case kind == loopback:
		n.reason = "--network loopback"
	default:
		return n, fmt.Errorf("--network %q is neither %s nor %s", kind, namespaces, loopback)
	}
	return n, nil
}

func (n *network) check() error {
	for _, program := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("network namespaces need iproute2 of Linux: %w", err)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	return nil
}

// make makes the bridge, and a namespace for each machine.
func (n *network) make() error {
	if _, err := net.InterfaceByName(bridge); err == nil {
		return fmt.Errorf("there is a network interface %q already; if no other run of this program uses it, remove it: "+
			"ip link del %[1]s; ip netns del %[1]s-a; ip netns del %[1]s-b; ip netns del %[1]s-w", bridge)
	}
	if err := ip("link add " + bridge + " type bridge"); err != nil {
		return err
	}
	n.made = append(n.made, "link del "+bridge)
	if err := ip("addr add "+bridgeAddress+"/24 dev "+bridge, "link set "+bridge+" up"); err != nil {
		return err
	}
	for i, name := range machineNames {
		space := namespace(name)
		if err := ip("netns add " + space); err != nil {
			return err
		}
		n.made = append(n.made, "netns del "+space)
		if err := ip("link add " + space + " type veth peer name eth0 netns " + space); err != nil {
			return err
		}
		n.made = append(n.made, "link del "+space) // it outlasts its namespace while that has connections
		if err := ip("link set "+space+" master "+bridge+" up",
			"-n "+space+" link set lo up", fmt.Sprintf("-n %s addr add %s/24 dev eth0", space, n.host(i)), "-n "+space+" link set eth0 up"); err != nil {
			return err
		}
	}
	return nil
}

// remove removes what was made.
func (n *network) remove() {
	for _, command := range slices.Backward(n.made) {
		_ = ip(command)
	}
}

// host returns the address of a machine.
func (n *network) host(machine int) string {
	if n.isolated {
		return fmt.Sprintf("10.99.87.%d", machine+1)
	}
	return "127.0.0.1"
}

// ports returns what a store and its member listen on.
func (n *network) ports() (store, peer int, err error) {
	if n.isolated {
		return 1883, 2380, nil
	}
	for _, port := range []*int{&store, &peer} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, 0, err
		}
		defer listener.Close()
		*port = listener.Addr().(*net.TCPAddr).Port
	}
	return store, peer, nil
}

// command returns a command that runs on a machine.
func (n *network) command(machine, program string, arguments ...string) *exec.Cmd {
	if n.isolated {
		return exec.Command("ip", append([]string{"netns", "exec", namespace(machine), program}, arguments...)...)
	}
	return exec.Command(program, arguments...)
}

// cut drops all packets of a machine, and mend lets them pass again. The machine sees no difference
// to a network that is silent: its own link stays up.
func (n *network) cut(m *machine) error  { return pass(m, 2) } // learns, and passes nothing on
func (n *network) mend(m *machine) error { return pass(m, 3) }

func pass(m *machine, state int) error {
	return ip(fmt.Sprintf("link set dev %s type bridge_slave state %d", namespace(m.name), state))
}

// silence drops all packets that a machine sends, by a queue without room, and unsilence undoes that.
func (n *network) silence(m *machine) error {
	return ip("netns exec " + namespace(m.name) + " tc qdisc add dev eth0 root bfifo limit 1")
}

func (n *network) unsilence(m *machine) error {
	return ip("netns exec " + namespace(m.name) + " tc qdisc del dev eth0 root")
}

// namespace returns the name of a machine's namespace, and of its port of the bridge.
func namespace(machine string) string { return bridge + "-" + machine }

// ip runs commands of iproute2.
func ip(commands ...string) error {
	for _, command := range commands {
		cmd := exec.Command("ip", strings.Fields(command)...)
		cmd.SysProcAttr = apart
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", command, err, said)
		}
	}
	return nil
}
