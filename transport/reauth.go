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

// showToken authenticates the connection anew if the token file has changed
// [MQTT-4.12.1]. It does not wait for the answer: requests go on, and a broker that does
// not take the token ends the connection. A file that cannot be read is left alone until
// the next look; the old token is still good for some time.
func (c *mqttConn) showToken(conn *mqttnet.Conn, authentication *authentication) {
	token, err := mqttnet.ReadSecret(c.options.TokenFile)
	if err != nil {
		c.logger.Warn("cannot read the token file", "error", err)
		return
	}
	if !authentication.replace(token) {
		return
	}
	c.logger.Debug("the token has changed: authenticating anew")
	// An error ends the connection, which its reader reports.
	_, _ = authentication.packet(packets.AuthReauthenticate).Packet().WriteTo(conn)
}
