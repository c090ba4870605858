package access

import "log/slog"

// Credentials is what a client sends at CONNECT to authenticate.
type Credentials struct {
	// Client is the MQTT client id.
	Client string
	// User is the user name of CONNECT; where Certified, it is the subject of the
	// client certificate.
	User string
	// Password is the password of CONNECT. An Authenticator must not retain it.
	Password []byte
	// Certified: TLS has verified a client certificate, and User is its subject.
	Certified bool
}

// LogValue returns the credentials without the password. It has no effect on Credentials
// inside another struct: log the Credentials themselves.
func (c Credentials) LogValue() slog.Value {
	return slog.GroupValue(slog.String("client", c.Client), slog.String("user", c.User), slog.Bool("certified", c.Certified))
}

// Identity is a client that has authenticated.
type Identity struct {
	// Client is the MQTT client id, and User the user name of Credentials.
	Client, User string
}

// Authenticator decides which clients may connect. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns nil if the client is admitted. Otherwise the error says why, for
	// the log only: the client could learn from it which users exist. Authenticate may be
	// slow, as checking a password is by intention. A server calls it for a few clients at a
	// time and lets others wait, so it should bound how long it waits, for example for
	// another service.
	Authenticate(Credentials) error
}

// QuickAuthenticator is an Authenticator that can often decide without a slow comparison. A
// server that bounds how many comparisons run at once calls AuthenticateQuickly first, and
// Authenticate only if the result is not known.
type QuickAuthenticator interface {
	Authenticator
	// AuthenticateQuickly returns what Authenticate would return if that is known at once;
	// otherwise known is false. Neither its duration nor known may reveal, to a client that
	// does not know the password, which users exist.
	AuthenticateQuickly(Credentials) (known bool, err error)
}
