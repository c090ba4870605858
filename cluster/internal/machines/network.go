//go:build unix

// Package machines has what programs and tests need that let the machines of a pair fail: a network
// that can be cut, and a check that two stores never answer at once.
package machines

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// Apart keeps what a command starts from Ctrl-C, which goes to its director alone.
var Apart = &syscall.SysProcAttr{Setpgid: true}

// Network connects machines: network namespaces on a bridge, or processes on loopback. The zero
// value is loopback.
type Network struct {
	isolated bool
	bridge   string
	subnet   string
	made     []string
}

// NewNetwork makes a bridge, which has a short name, and a namespace for each machine. subnet is the
// beginning of their addresses, like 10.99.87. The error says why that does not work. Call Remove in
// any case.
func NewNetwork(bridge, subnet string, machines ...string) (*Network, error) {
	n := &Network{isolated: true, bridge: bridge, subnet: subnet}
	if err := Check(); err != nil {
		return n, err
	}
	if _, err := net.InterfaceByName(bridge); err == nil {
		remove := "ip link del " + bridge
		for _, machine := range machines {
			remove += "; ip netns del " + n.space(machine)
		}
		return n, fmt.Errorf("there is a network interface %q already; if no other run of this program uses it, remove it: %s", bridge, remove)
	}
	if err := run("ip link add " + bridge + " type bridge"); err != nil {
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

// Check returns why namespaces cannot be made here, or nil.
func Check() error {
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

// connect makes the namespace of a machine.
func (n *Network) connect(machine, host string) error {
	space := n.space(machine)
	if err := run("ip netns add " + space); err != nil {
		return err
	}
	n.made = append(n.made, "ip netns del "+space)
	if err := run("ip link add " + space + " type veth peer name eth0 netns " + space); err != nil {
		return err
	}
	n.made = append(n.made, "ip link del "+space) // it outlasts its namespace while that has connections
	return run("ip link set "+space+" master "+n.bridge+" up",
		"ip -n "+space+" link set lo up", "ip -n "+space+" addr add "+host+"/24 dev eth0", "ip -n "+space+" link set eth0 up")
}

// Remove removes what was made.
func (n *Network) Remove() {
	for _, command := range slices.Backward(n.made) {
		_ = run(command)
	}
}

// Isolated reports whether the machines can be cut off.
func (n *Network) Isolated() bool { return n.isolated }

// Director returns the address of this process.
func (n *Network) Director() string { return n.address(254) }

// Host returns the address of a machine.
func (n *Network) Host(machine int) string { return n.address(machine + 1) }

func (n *Network) address(last int) string {
	if n.isolated {
		return fmt.Sprintf("%s.%d", n.subnet, last)
	}
	return "127.0.0.1"
}

// Ports returns ports for a store and its member.
func (n *Network) Ports() (store, peer int, err error) {
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

// Command returns the words of a command that runs on a machine.
func (n *Network) Command(machine, program string, arguments ...string) []string {
	words := append([]string{program}, arguments...)
	if n.isolated {
		words = append([]string{"ip", "netns", "exec", n.space(machine)}, words...)
	}
	return words
}

// Cut drops all packets of a machine, and Mend lets them pass again. The machine sees no difference
// to a network that is silent: its own link stays up.
func (n *Network) Cut(machine string) error  { return n.pass(machine, 2) } // learns, and passes nothing on
func (n *Network) Mend(machine string) error { return n.pass(machine, 3) }

func (n *Network) pass(machine string, state int) error {
	return run(fmt.Sprintf("ip link set dev %s type bridge_slave state %d", n.space(machine), state))
}

// Silence drops all packets that a machine sends, by a queue without room, and Unsilence undoes that.
func (n *Network) Silence(machine string) error {
	return run("ip netns exec " + n.space(machine) + " tc qdisc add dev eth0 root bfifo limit 1")
}

func (n *Network) Unsilence(machine string) error {
	return run("ip netns exec " + n.space(machine) + " tc qdisc del dev eth0 root")
}

// Deafen drops all packets that are sent to a machine, and Undeafen undoes that.
func (n *Network) Deafen(machine string) error {
	return run("tc qdisc add dev " + n.space(machine) + " root bfifo limit 1")
}

func (n *Network) Undeafen(machine string) error {
	return run("tc qdisc del dev " + n.space(machine) + " root")
}

// space returns the name of a machine's namespace, and of its port of the bridge.
func (n *Network) space(machine string) string { return n.bridge + "-" + machine }

// run runs commands of iproute2.
func run(commands ...string) error {
	for _, command := range commands {
		words := strings.Fields(command)
		cmd := exec.Command(words[0], words[1:]...)
		cmd.SysProcAttr = Apart
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, said)
		}
	}
	return nil
}
