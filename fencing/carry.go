package fencing

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// HeaderName is the HTTP header field in which SetHeader puts a token.
const HeaderName = "Fencing-Token"

// UserPropertyName is the MQTT 5 user property that carries a token: "__ft", as in
// requests to the state store.
const UserPropertyName = protocol.PropertyFencingToken

// ErrRepeatedToken: a message has several tokens where one is wanted, so the writer's
// token is not known. It does not matter whether they are equal.
var ErrRepeatedToken = errors.New("more than one fencing token")

// SetHeader sets the header field [HeaderName] of an HTTP request to token, and
// replaces the values it has. header is an http.Header, or anything with its Set.
//
// It returns an error that matches ErrMissingToken for the zero token, and one that matches
// hlc.ErrMalformed for a malformed token or for one whose node id could change on the way: it
// has a comma, or characters other than visible ASCII. The header is then unchanged.
func SetHeader(header interface{ Set(name, value string) }, token hlc.Token) error {
	if err := checkForHeader(token); err != nil {
		return fmt.Errorf("fencing: set header %s: %w", HeaderName, err)
	}
	header.Set(HeaderName, token.String())
	return nil
}

// TokenFromHeader returns the token in the header field [HeaderName]. header is an
// http.Header, or anything with its Values.
//
// It returns an error that matches ErrMissingToken if there is no token, ErrRepeatedToken if
// there are several (in several fields, or joined with commas as proxies do), and
// hlc.ErrMalformed if the text is not a token or could have changed on the way, see SetHeader.
// Refuse the write then: with status 428 for a missing token, and 400 otherwise.
func TokenFromHeader(header interface{ Values(name string) []string }) (hlc.Token, error) {
	values := header.Values(HeaderName)
	if len(values) == 1 {
		values = strings.Split(values[0], ",")
	}
	token, err := onlyToken(values)
	if err == nil {
		err = checkForHeader(token)
	}
	if err != nil {
		return hlc.Token{}, fmt.Errorf("fencing: header %s: %w", HeaderName, err)
	}
	return token, nil
}

// checkForHeader refuses what validate does, and a node with characters that may be changed or misread on the way:
// spaces are trimmed, a comma separates the values of joined fields, and characters beyond
// ASCII have no agreed meaning (RFC 9110, section 5.5).
func checkForHeader(token hlc.Token) error {
	if strings.ContainsFunc(token.Node, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }) {
		return fmt.Errorf("%w %.64q: the node has characters that are not safe in a header", hlc.ErrMalformed, token.String())
	}
	return validate(token)
}

// UserProperty returns the MQTT 5 user property that carries token: its name, which is
// [UserPropertyName], and its value. Add it to the user properties of the message,
// which must not have one of that name: the receiver refuses a message with two.
//
// It returns an error that matches ErrMissingToken for the zero token, and one that
// matches hlc.ErrMalformed for a malformed token.
func UserProperty(token hlc.Token) (name, value string, err error) {
	if err := validate(token); err != nil {
		return "", "", fmt.Errorf("fencing: user property %s: %w", UserPropertyName, err)
	}
	return UserPropertyName, token.String(), nil
}

// TokenFromUserProperties returns the token that an MQTT 5 message carries. values are
// the values of all its user properties with the name [UserPropertyName], which MQTT
// libraries return by name; paho does so with UserProperties.GetAll.
//
// It returns an error that matches ErrMissingToken if there is no value, ErrRepeatedToken if
// there are several, and hlc.ErrMalformed if the value is not a token. Refuse the write then.
func TokenFromUserProperties(values []string) (hlc.Token, error) {
	token, err := onlyToken(values)
	if err != nil {
		err = fmt.Errorf("fencing: user property %s: %w", UserPropertyName, err)
	}
	return token, err
}

// validate returns an error for a token that is zero or malformed.
func validate(token hlc.Token) error {
	if token.IsZero() {
		return ErrMissingToken
	}
	_, err := token.MarshalText()
	return err
}

// onlyToken parses the only text of a list.
func onlyToken(texts []string) (hlc.Token, error) {
	switch len(texts) {
	case 0:
		return hlc.Token{}, ErrMissingToken
	case 1:
		return hlc.ParseToken(texts[0])
	default:
		return hlc.Token{}, fmt.Errorf("%w: there are %d", ErrRepeatedToken, len(texts))
	}
}
