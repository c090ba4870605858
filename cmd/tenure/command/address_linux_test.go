package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// A network has namespaces with an interface eth0 each, which a bridge in the first one connects.
type network struct {
	t     *testing.T
	names map[string]string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	prerequisite.Long(t, "it waits for three terms of two nodes")
	prerequisite.Program(t, "ip", "iproute2")
	prerequisite.Program(t, "pgrep", "procps")
	prerequisite.Program(t, "arping", "iputils-arping")
	n := &network{t, make(map[string]string)}
	for i, node := range []string{"store", "a", "b"} {
		name := fmt.Sprintf("tenure-%d-%s", os.Getpid(), node)
		if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
			prerequisite.Missing(t, fmt.Sprintf("no network namespace can be made: %v: %s", err, out))
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() })
		n.names[node] = name
		n.run(node, "ip link set lo up")
		if node == "store" {
			n.run(node, "ip link add eth0 type bridge && ip link set eth0 up && ip address add 192.0.2.1/24 dev eth0")
			continue
		}
		n.run("store", fmt.Sprintf("ip link add to-%[1]s type veth peer name eth0 netns %[2]s && ip link set to-%[1]s master eth0 up", node, name))
		n.run(node, fmt.Sprintf("ip link set eth0 up && ip address add 192.0.2.%d/24 dev eth0", i+1))
	}
	return n
}

// command returns a command line of a node.
func (n *network) command(node, line string) *exec.Cmd {
	cmd := exec.Command("ip", "netns", "exec", n.names[node], "/bin/sh", "-c", "exec "+line)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(address)+":"+os.Getenv("PATH"))
	return cmd
}

// run runs a script of a node, and returns what it prints.
func (n *network) run(node, script string) string {
	n.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", n.names[node], "/bin/sh", "-ec", script).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %s: %v: %s", node, script, err, out)
	}
	return string(out)
}

const address = "../../../deploy/address/address.sh"

// Both gateways have a web server that says the gateway's name. Others find the one that leads by its address.
func TestAnAddressFollowsTheLeaderAlsoAfterACrashLeftItBehind(t *testing.T) {
	python := prerequisite.Program(t, "python3", "python3")
	n := newNetwork(t)
	script, err := filepath.Abs(address)
	if err != nil {
		t.Fatal(err)
	}
	store := start(t, n.command("store", built.Path(t)+" serve --memory --addr 192.0.2.1:1883 --insecure"))
	store.mustPrint(".*192.0.2.1:1883.*")
	gateway := func(node string) *running {
		return start(t, n.command(node, strings.Join([]string{
			built.Path(t), "run address --broker mqtt://192.0.2.1 --ttl 2s --client-id", node,
			"--after '" + script, "remove 192.0.2.10/24 eth0' --", script, "hold 192.0.2.10/24 eth0"}, " ")))
	}
	for _, node := range []string{"a", "b"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte(node), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, n.command(node, python+" -m http.server 8000 --directory "+dir))
	}
	answers := func(node string) {
		t.Helper()
		await.Until(func() bool {
			out, _ := n.command("store", python+` -c 'import urllib.request as r; print(r.urlopen("http://192.0.2.10:8000/", timeout=1).read().decode())'`).Output()
			return strings.TrimSpace(string(out)) == node
		})
	}
	a := gateway("a")
	answers("a")
	b := gateway("b")
	// The supervisor and the guard of a die in one moment, so nothing removes the address.
	a.signal(syscall.SIGSTOP)
	guard := n.run("a", fmt.Sprintf("pgrep -P %d -f tenure-guard", a.cmd.Process.Pid))
	n.run("a", "kill -KILL "+guard)
	a.signal(syscall.SIGKILL)
	answers("b")
	if !strings.Contains(n.run("a", "ip -oneline address"), "192.0.2.10/24") {
		t.Fatal("the address is gone from the gateway that crashed: the test shows nothing")
	}
	gateway("a")
	await.Until(func() bool { return !strings.Contains(n.run("a", "ip -oneline address"), "192.0.2.10/24") })
	b.signal(syscall.SIGTERM)
	answers("a")
	if strings.Contains(n.run("b", "ip -oneline address"), "192.0.2.10/24") {
		t.Error("the gateway that handed over has the address still")
	}
}
