package mqtt

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// scheme is how an address carries MQTT.
type scheme struct {
	port      string // if the address names none
	encrypted bool
	websocket bool
}

var schemes = map[string]scheme{
	"mqtt":  {port: "1883"},
	"tcp":   {port: "1883"},
	"mqtts": {port: "8883", encrypted: true},
	"tls":   {port: "8883", encrypted: true},
	"ssl":   {port: "8883", encrypted: true},
	"ws":    {port: "80", websocket: true},
	"wss":   {port: "443", encrypted: true, websocket: true},
}

// schemeOf returns the scheme of an address that ParseAddress has accepted.
func schemeOf(server *url.URL) scheme { return schemes[server.Scheme] }

// IsEncrypted reports whether connections to an address from [ParseAddress] use TLS.
func IsEncrypted(server *url.URL) bool { return schemeOf(server).encrypted }

// CheckWebSocket returns an error if connections to an address from [ParseAddress] use WebSocket, and
// the program gives no function for that.
func CheckWebSocket(server *url.URL, given bool) error {
	if given || !schemeOf(server).websocket {
		return nil
	}
	return fmt.Errorf("broker address %q needs Options.WebSocket: set it to tenurews.Upgrade, of the module github.com/tenurelock/tenure/contrib/tenurews", server)
}

const addressForm = "write it like mqtt://host:1883, mqtts://host:8883, ws://host/mqtt or wss://host/mqtt"

// ParseAddresses parses a list of broker addresses, separated by commas, each as
// [ParseAddress] does.
func ParseAddresses(list string) ([]*url.URL, error) {
	var servers []*url.URL
	for address := range strings.SplitSeq(list, ",") {
		server, err := ParseAddress(strings.TrimSpace(address))
		if err != nil {
			return nil, withoutCredentials(list, err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// withoutCredentials replaces an error that might quote a password in text. Nothing can
// cut the password out: a "/", "#" or comma in it splits the text in the wrong place.
func withoutCredentials(text string, err error) error {
	if err != nil && strings.Contains(text, "@") {
		return errCredentials
	}
	return err
}

var errCredentials = errors.New("broker address: remove the @ and the text before it: credentials are options; " + addressForm)

// ParseAddress parses the address of one broker, such as mqtts://host:8883, and adds the
// default port of its scheme. An address without a scheme is one of mqtt. The error says how to
// write an address and never quotes credentials, which do not belong in one.
func ParseAddress(address string) (*url.URL, error) {
	server, err := parse(address)
	return server, withoutCredentials(address, err)
}

// parse may quote a password in its error.
func parse(address string) (*url.URL, error) {
	if address != "" && !strings.Contains(address, "//") {
		address = "mqtt://" + address
	}
	server, err := url.Parse(address)
	if err != nil {
		var parse *url.Error // it would quote the address
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, fmt.Errorf("broker address: %w; %s", err, addressForm)
	}
	scheme, spoken := schemes[server.Scheme]
	if !spoken || server.Hostname() == "" {
		return nil, fmt.Errorf("broker address %q: %s", address, addressForm)
	}
	if host := server.Hostname(); strings.Contains(host, ":") {
		_, wrong := netip.ParseAddr(host) // a second colon, without brackets
		if wrong == nil {
			_, wrong = url.Parse(server.String()) // a zone that no URL can contain
		}
		if wrong != nil {
			return nil, fmt.Errorf("broker address %q: %q is not a host; %s", address, host, addressForm)
		}
	}
	if server.User != nil {
		return nil, errCredentials
	}
	if !scheme.websocket && (server.Path != "" && server.Path != "/" || server.RawQuery != "") {
		return nil, fmt.Errorf("broker address %q: only host and port belong here", address)
	}
	if server.Fragment != "" {
		return nil, fmt.Errorf("broker address %q: a broker never sees what follows the #", address)
	}
	if port := server.Port(); port == "" {
		server.Host = net.JoinHostPort(server.Hostname(), scheme.port)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, fmt.Errorf("broker address %q: there is no port %s; the largest one is 65535", address, port)
	}
	return server, nil
}

// Rotation decides which of several servers a client connects to next. It is not safe for
// concurrent use.
type Rotation struct {
	servers []*url.URL
	turn    int
	// refused has the servers that sent this client to another one since the latest pause.
	refused []bool
	// silent has, for each server, how many attempts and connections in a row ended without an
	// answer of the server.
	silent []int
	// answered has the servers that answered the latest attempt.
	answered []bool
	// skipped has, for each server, how many pauses it is still left out for after it cost a timeout.
	skipped []int
}

// skips is how many pauses a server that cost a timeout is left out for, while another one can be
// asked: one that stands by, and may take its place.
const skips = 5

// NewRotation returns a rotation that begins with the first of servers, addresses from
// [ParseAddresses].
func NewRotation(servers []*url.URL) *Rotation {
	return &Rotation{servers: servers, refused: make([]bool, len(servers)), silent: make([]int, len(servers)), answered: make([]bool, len(servers)), skipped: make([]int, len(servers))}
}

// Server returns the present server.
func (r *Rotation) Server() *url.URL { return r.servers[r.turn] }

// Len returns the number of servers.
func (r *Rotation) Len() int { return len(r.servers) }

// Next goes to the next server in the circle, for an attempt after a pause.
func (r *Rotation) Next() {
	r.pause()
	r.turn = r.due()
}

// due returns the next server in the circle that is not left out, or the next one if all are.
func (r *Rotation) due() int {
	for i := range r.servers {
		if next := (r.turn + 1 + i) % len(r.servers); r.skipped[next] == 0 {
			return next
		}
	}
	return (r.turn + 1) % len(r.servers)
}

// pause notes that there is one, so each server may be asked again.
func (r *Rotation) pause() {
	clear(r.refused)
	for i := range r.skipped {
		r.skipped[i] = max(r.skipped[i]-1, 0)
	}
}

// Rest notes that there was a long time without an attempt, so each server may be asked again, but
// for the present one if that has just cost a timeout.
func (r *Rotation) Rest() {
	clear(r.refused)
	present := r.skipped[r.turn]
	clear(r.skipped)
	r.skipped[r.turn] = present
}

// TimedOut notes that the present server cost a timeout. After a few pauses it is asked again.
func (r *Rotation) TimedOut() { r.skipped[r.turn] = skips }

// OthersAnswer reports whether another server answered its latest attempt.
func (r *Rotation) OthersAnswer() bool {
	for i, answered := range r.answered {
		if answered && i != r.turn {
			return true
		}
	}
	return false
}

// Silent notes that the present server did not answer, or that the connection to it was lost.
// Until Answered, no reference of another server leads to it: a server that stands by may name
// one that was frozen a moment ago, and to ask that costs a timeout.
func (r *Rotation) Silent() {
	r.silent[r.turn]++
	r.answered[r.turn] = false
}

// Silence returns how many times Silent was called for the present server since Answered.
func (r *Rotation) Silence() int { return r.silent[r.turn] }

// Answered notes that the present server did answer.
func (r *Rotation) Answered() {
	r.silent[r.turn], r.skipped[r.turn], r.answered[r.turn] = 0, 0, true
}

// Follow goes on from the present server, which sends its clients to another one, as a standby
// does. reference is its Server Reference, or empty [MQTT-4.13.2]. The next server is the one
// that reference names, else the next in the circle. Servers that have sent the client on since
// the latest pause are left out, and so are silent ones. atOnce reports whether one is left: if
// not, the next attempt needs a pause, and goes to a silent server if there is one.
//
// The reference comes from a server that has not proved that it may name another one: over
// plain TCP anything could have written it. So it only chooses among the servers of the
// program and never adds one. known reports whether it named one of them.
func (r *Rotation) Follow(reference string) (atOnce, known bool) {
	r.refused[r.turn] = true
	named, known := r.named(reference)
	if known && !r.refused[named] && r.silent[named] == 0 {
		r.turn = named
		return true, true
	}
	for range r.servers {
		r.turn = (r.turn + 1) % len(r.servers)
		if !r.refused[r.turn] && r.silent[r.turn] == 0 {
			return true, known
		}
	}
	r.pause()
	r.nextSilent(named, known)
	return false, known
}

// nextSilent goes to a silent server, because all others have sent this client on: to the one that
// is named, else to the next one. If none is silent, or all of them cost a timeout a moment ago, it
// goes to the next server.
func (r *Rotation) nextSilent(named int, known bool) {
	if known && r.silent[named] > 0 && r.skipped[named] == 0 {
		r.turn = named
		return
	}
	for range r.servers {
		r.turn = (r.turn + 1) % len(r.servers)
		if r.silent[r.turn] > 0 && r.skipped[r.turn] == 0 {
			return
		}
	}
	r.turn = r.due()
}

// named returns the first server that a Server Reference names. A reference is a list with
// spaces in between. The items are host:port, or a host alone, which means any port; a scheme
// before them, as in an address, is ignored, because the address of the program decides about
// encryption.
func (r *Rotation) named(reference string) (server int, known bool) {
	for item := range strings.FieldsSeq(reference) {
		if _, after, found := strings.Cut(item, "://"); found {
			item = after
		}
		item = strings.TrimSuffix(item, "/")
		for i, server := range r.servers {
			if strings.EqualFold(item, server.Host) || strings.EqualFold(strings.Trim(item, "[]"), server.Hostname()) {
				return i, true
			}
		}
	}
	return 0, false
}
