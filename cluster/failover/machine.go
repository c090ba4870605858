//go:build unix

package main

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/machines"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/pair"
)

// machineNames are the names of the machines. The last one is the witness, which has neither a store
// for clients nor a node.
var machineNames = []string{"a", "b", "w"}

// What a process says first.
const (
	saysListening = "listening on"
	saysStandby   = "standing by on"
	saysMember    = "running member"
)

// machine is one of three.
type machine struct {
	name, host, peer string
	address          string // of the store; empty for the witness
	store, node      *pair.Process

	// Guarded by director.mu.
	state  string    // what the process of the store said last
	said   time.Time // when
	serves time.Time // when it said last that it serves
}

// nodeName is the name of the node on a machine.
func (m *machine) nodeName() string { return "node-" + m.name }

// How the machines are connected.
const (
	loopback   = "loopback"
	namespaces = "namespaces"
)

// newNetwork makes the network. The caller removes it, also after an error.
func (d *director) newNetwork() (err error) {
	d.network = new(machines.Network)
	unfit := machines.Check()
	switch {
	case d.settings.network == namespaces || d.settings.network == "" && unfit == nil:
		d.network, err = machines.NewNetwork("tenure", "10.99.87", machineNames...)
	case d.settings.network == "":
		d.reason = unfit.Error()
	case d.settings.network == loopback:
		d.reason = "--network loopback"
	default:
		err = fmt.Errorf("--network %q is neither %s nor %s", d.settings.network, namespaces, loopback)
	}
	return err
}

// newMachines returns the machines, whose processes do not run yet, and issues their certificates.
func (d *director) newMachines() error {
	authority := certificates.New(fatal{}, "failover")
	certificates.Write(fatal{}, authority.Own, d.file("ca.pem"), "")
	for i, name := range machineNames {
		m := &machine{name: name, host: d.network.Host(i)}
		store, peer, err := d.network.Ports()
		if err != nil {
			return err
		}
		m.peer = fmt.Sprintf("%s=https://%s:%d", name, m.host, peer)
		if i < len(machineNames)-1 {
			m.address = fmt.Sprintf("%s:%d", m.host, store)
			d.gateways = append(d.gateways, m)
		}
		issued := authority.Issue(pkix.Name{CommonName: name}, func(c *x509.Certificate) {
			c.NotAfter = time.Now().AddDate(1, 0, 0)
			c.IPAddresses = []net.IP{net.ParseIP(m.host)}
		})
		certificates.Write(fatal{}, issued, d.file(name+".pem"), d.file(name+".key"))
		d.machines = append(d.machines, m)
	}
	return nil
}

// fatal is what issues certificates outside of a test.
type fatal struct{}

func (fatal) Helper()              {}
func (fatal) Fatal(reasons ...any) { panic(fmt.Sprint(reasons...)) } // no key, or no room in the directory

func (d *director) file(name string) string { return filepath.Join(d.dir, name) }

// startStore starts the store of a gateway, or the witness, once the process before has ended.
func (d *director) startStore(m *machine) error {
	if m.store != nil {
		<-m.store.Exited()
	}
	var peers []string
	for _, other := range d.machines {
		peers = append(peers, other.peer)
	}
	arguments := []string{"serve", "--addr", m.address, "--insecure"}
	if m.address == "" {
		arguments = []string{"witness"}
	}
	arguments = append(arguments, "--member", m.name, "--cluster", strings.Join(peers, ","), "--data", d.file(m.name), "--log-level", "info",
		"--peer-ca", d.file("ca.pem"), "--peer-cert", d.file(m.name+".pem"), "--peer-key", d.file(m.name+".key"))
	p, err := d.launch(m, "store-"+m.name, func(line []byte) { d.heardStore(m, string(line)) }, d.program, arguments...)
	m.store = p
	return err
}

// startNode starts the node of a gateway.
func (d *director) startNode(m *machine, instant bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ttl := d.ttl
	if instant {
		ttl = d.short
	}
	m.node, err = d.launch(m, m.nodeName(), d.heard, self,
		"--node", m.nodeName(), "--stores", d.stores(), "--ttl", ttl.String(), fmt.Sprintf("--instant=%t", instant))
	return err
}

// launch starts a process on a machine.
func (d *director) launch(m *machine, name string, line func([]byte), program string, arguments ...string) (*pair.Process, error) {
	words := d.network.Command(m.name, program, arguments...)
	cmd := exec.Command(words[0], words[1:]...)
	log, err := d.log(name)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own
	cmd.Stderr = log
	return pair.StartCommand(cmd, name, line, nil)
}

// log returns the file to which a process logs.
func (d *director) log(name string) (*os.File, error) {
	if d.logs == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return os.OpenFile(filepath.Join(d.logs, name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// stores returns the addresses for a client.
func (d *director) stores() string {
	var addresses []string
	for _, m := range d.gateways {
		addresses = append(addresses, "mqtt://"+m.address)
	}
	return strings.Join(addresses, ",")
}

// kill ends all processes of a machine in one moment.
func (m *machine) kill() {
	for _, p := range []*pair.Process{m.store, m.node} {
		if p != nil {
			_ = p.Signal(os.Kill) // fails if it has ended
		}
	}
	for _, p := range []*pair.Process{m.store, m.node} {
		if p != nil {
			<-p.Exited()
		}
	}
}
