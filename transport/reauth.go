package transport

import (
	"bytes"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqttnet"
)

// methodServiceAccount is the Authentication Method of brokers in Kubernetes for the token of
// a service account.
const methodServiceAccount = "K8S-SAT"

// tokenCheck is how often the client reads the token file. Kubernetes replaces a token when a
// fifth of its lifetime is left, which is two minutes or more.
const tokenCheck = 10 * time.Second

// authentication is paho's AuthHandler for the token of one connection. A connection without
// a token has one too: paho v0.23.0 panics without it, when a broker says in CONNACK that
// there was an authentication.
type authentication struct {
	mu    sync.Mutex
	token []byte
}

var _ paho.Auther = (*authentication)(nil)

// Authenticate answers a broker that asks for more with the same token again: the method has
// one step.
func (a *authentication) Authenticate(*paho.Auth) *paho.Auth {
	return a.packet(packets.AuthContinueAuthentication)
}

// Authenticated does nothing: a broker that refuses a token ends the connection.
func (a *authentication) Authenticated() {}

func (a *authentication) packet(reason byte) *paho.Auth {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &paho.Auth{ReasonCode: reason, Properties: &paho.AuthProperties{AuthMethod: methodServiceAccount, AuthData: a.token}}
}

// replace stores a token and reports whether it differs from the one before.
func (a *authentication) replace(token []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if bytes.Equal(a.token, token) {
		return false
	}
	a.token = token
	return true
}

// showToken authenticates the connection again if the token in the file has changed
// [MQTT-4.12.1]. It does not wait for the answer: requests go on, and a broker that refuses
// the token ends the connection. If the file cannot be read, the old token stays in use
// until the next look; it is still good for some time.
func (l *link) showToken(file string) {
	token, err := mqttnet.ReadSecret(file)
	if err != nil {
		l.logger.Warn("cannot read the token file", "error", err)
		return
	}
	if !l.authentication.replace(token) {
		return
	}
	l.logger.Debug("the token has changed: authenticating again")
	// An error ends the connection, which its reader reports.
	_, _ = l.authentication.packet(packets.AuthReauthenticate).Packet().WriteTo(l.net)
}
