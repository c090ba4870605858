package access

// Credentials is what a connection says and proves of itself at CONNECT.
type Credentials struct {
	// Client is the MQTT client id.
	Client string
	// User is the user name of CONNECT; where Certified, it is the subject of the
	// client certificate.
	User string
	// Password is that of CONNECT. An Authenticator does not keep it.
	Password []byte
	// Certified says that TLS has verified a client certificate whose subject is
	// User.
	Certified bool
}

// Identity is a client after it was authenticated.
type Identity struct {
	// Client is the MQTT client id, and User what Credentials had.
	Client, User string
}

// Authenticator decides who may connect. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns nil if the client is admitted. An error says why it is
	// not: to the log, and never to the client, who could learn from it which
	// users there are. It may take a while: checking a password is slow by
	// intention. A server calls it for a few clients at once and lets the others
	// wait, so it should bound its own waits, for another service for example.
	Authenticate(Credentials) error
}

// QuickAuthenticator is an Authenticator that can often answer without a slow comparison.
// A server that bounds how many comparisons run at once asks it first, and calls
// Authenticate only for what it does not know.
type QuickAuthenticator interface {
	Authenticator
	// AuthenticateQuickly returns what Authenticate would return, where that can be
	// known at once; otherwise known is false. How long it takes, and whether the
	// answer is known, must not tell a client that does not know the password which
	// users there are.
	AuthenticateQuickly(Credentials) (known bool, err error)
}
