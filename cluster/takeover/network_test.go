//go:build unix

package takeover_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// network connects machines: network namespaces on a bridge, or processes on loopback. The zero
// value is loopback.
type network struct {
	isolated bool
	made     []string
}

// bridge is the name of the bridge, and the beginning of all names; subnet begins all addresses.
const bridge, subnet = "takeover", "10.99.88"

// newNetwork makes a bridge, and a namespace for each machine. The error says why that does not work. Call
// Remove in any case.
func newNetwork(machines ...string) (*network, error) {
	n := &network{isolated: true}
	for _, program := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(program); err != nil {
			return n, fmt.Errorf("network namespaces need iproute2 of Linux: %w", err)
		}
	}
	if os.Geteuid() != 0 {
		return n, errors.New("network namespaces need root")
	}
	if _, err := net.InterfaceByName(bridge); err == nil {
		remove := "ip link del " + bridge
		for _, machine := range machines {
			remove += "; ip netns del " + space(machine)
		}
		return n, fmt.Errorf("there is a network interface %q already; if no other run of these tests uses it, remove it: %s",
			bridge, remove)
	}
	// With a delay the kernel would end a cut that is under way when the delay after the start has passed.
	if err := run("ip link add " + bridge + " type bridge forward_delay 0"); err != nil {
		return n, err
	}
	n.made = append(n.made, "ip link del "+bridge)
	if err := run("ip addr add "+n.Director()+"/24 dev "+bridge, "ip link set "+bridge+" up"); err != nil {
		return n, err
	}
	for i, machine := range machines {
		if err := n.connect(machine, n.Host(i)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// connect makes the namespace of a machine.
func (n *network) connect(machine, host string) error {
	name := space(machine)
	if err := run("ip netns add " + name); err != nil {
		return err
	}
	n.made = append(n.made, "ip netns del "+name)
	if err := run("ip link add " + name + " type veth peer name eth0 netns " + name); err != nil {
		return err
	}
	n.made = append(n.made, "ip link del "+name) // it outlasts its namespace while that has connections
	return run("ip link set "+name+" master "+bridge+" up",
		"ip -n "+name+" link set lo up", "ip -n "+name+" addr add "+host+"/24 dev eth0", "ip -n "+name+" link set eth0 up")
}

// Remove removes what was made.
func (n *network) Remove() {
	for _, command := range slices.Backward(n.made) {
		_ = run(command)
	}
}

// Director returns the address of this process.
func (n *network) Director() string { return n.address(254) }

// Host returns the address of a machine.
func (n *network) Host(machine int) string { return n.address(machine + 1) }

func (n *network) address(last int) string {
	if n.isolated {
		return fmt.Sprintf("%s.%d", subnet, last)
	}
	return "127.0.0.1"
}

// Port returns a port of a machine: the usual one, or a free one on loopback, which all machines share.
func (n *network) Port(usual int) (int, error) {
	if n.isolated {
		return usual, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// Command returns the words of a command that runs a program on a machine.
func (n *network) Command(machine, program string) []string {
	if n.isolated {
		return []string{"ip", "netns", "exec", space(machine), program}
	}
	return []string{program}
}

// Cut drops all packets of a machine, and Mend lets them pass again. The machine sees no difference
// to a network that is silent: its own link stays up.
func (n *network) Cut(machine string) error  { return n.pass(machine, 2) } // learns, and passes nothing on
func (n *network) Mend(machine string) error { return n.pass(machine, 3) }

func (n *network) pass(machine string, state int) error {
	return run(fmt.Sprintf("ip link set dev %s type bridge_slave state %d", space(machine), state))
}

// Silence drops all packets that a machine sends, by a queue without space, and Unsilence undoes that.
func (n *network) Silence(machine string) error {
	return run("ip netns exec " + space(machine) + " tc qdisc add dev eth0 root bfifo limit 1")
}

func (n *network) Unsilence(machine string) error {
	return run("ip netns exec " + space(machine) + " tc qdisc del dev eth0 root")
}

// Deafen drops all packets that are sent to a machine, and Undeafen undoes that.
func (n *network) Deafen(machine string) error {
	return run("tc qdisc add dev " + space(machine) + " root bfifo limit 1")
}

func (n *network) Undeafen(machine string) error {
	return run("tc qdisc del dev " + space(machine) + " root")
}

// space returns the name of a machine's namespace, and of its port of the bridge.
func space(machine string) string { return bridge + "-" + machine }

// run runs commands of iproute2.
func run(commands ...string) error {
	for _, command := range commands {
		words := strings.Fields(command)
		cmd := exec.Command(words[0], words[1:]...)
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, said)
		}
	}
	return nil
}
