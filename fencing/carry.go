package fencing

import (
	"errors"
	"fmt"
	"strings"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// HeaderName is the HTTP header field in which SetHeader puts a token.
const HeaderName = "Fencing-Token"

// UserPropertyName is the MQTT 5 user property in which SetUserProperty puts a
// token: "__ft", the one in which requests to the state store carry theirs.
const UserPropertyName = protocol.PropertyFencingToken

// ErrRepeatedToken: there are several tokens where one is wanted, and nobody can
// tell which the writer meant. It does not matter whether they are equal.
var ErrRepeatedToken = errors.New("more than one fencing token")

// SetHeader puts a token into the header of an HTTP request, in place of any that
// is there. An http.Header serves as header.
//
// The zero token is an error that matches ErrMissingToken. A token that is no
// timestamp, or whose node id would not survive the way because it has other
// characters than visible ASCII, or a comma, is one that matches hlc.ErrMalformed.
// The header is then unchanged.
func SetHeader(header interface{ Set(name, value string) }, token hlc.Token) error {
	text, err := tokenText(token)
	if err == nil && strings.ContainsFunc(token.Node, unfitForHeader) {
		err = fmt.Errorf("%w %.64q: the node has characters that are not safe in a header", hlc.ErrMalformed, text)
	}
	if err != nil {
		return fmt.Errorf("fencing: set header %s: %w", HeaderName, err)
	}
	header.Set(HeaderName, text)
	return nil
}

// unfitForHeader reports whether a character of a field value may be changed or
// misunderstood on the way: space is trimmed, a comma separates the values of fields
// that were joined, and what is not ASCII has no agreed meaning (RFC 9110, section
// 5.5).
func unfitForHeader(r rune) bool { return r <= ' ' || r > '~' || r == ',' }

// TokenFromHeader returns the token that SetHeader put into a header. An
// http.Header serves as header.
//
// No token is an error that matches ErrMissingToken, several (in several fields, or
// joined with commas as proxies do) one that matches ErrRepeatedToken, and a text
// that is no token one that matches hlc.ErrMalformed. None of them may pass for a
// write with a token; answer with status 400, or 428 for a missing one.
func TokenFromHeader(header interface{ Values(name string) []string }) (hlc.Token, error) {
	values := header.Values(HeaderName)
	if len(values) == 1 {
		values = strings.Split(values[0], ",")
	}
	token, err := onlyToken(values)
	if err == nil && strings.ContainsFunc(token.Node, unfitForHeader) {
		err = fmt.Errorf("%w %.64q: the node has characters that are not safe in a header", hlc.ErrMalformed, values[0])
	}
	if err != nil {
		return hlc.Token{}, fmt.Errorf("fencing: header %s: %w", HeaderName, err)
	}
	return token, nil
}

// SetUserProperty puts a token into the user properties of an MQTT 5 message, in
// place of any that is there. The errors are those of SetHeader, but any well-formed
// token will do.
func SetUserProperty(properties *paho.UserProperties, token hlc.Token) error {
	text, err := tokenText(token)
	if err != nil {
		return fmt.Errorf("fencing: set user property %s: %w", UserPropertyName, err)
	}
	kept := make(paho.UserProperties, 0, len(*properties)+1) // the old one may be shared
	for _, property := range *properties {
		if property.Key != UserPropertyName {
			kept = append(kept, property)
		}
	}
	*properties = append(kept, paho.UserProperty{Key: UserPropertyName, Value: text})
	return nil
}

// TokenFromUserProperties returns the token that SetUserProperty put into the user
// properties of a message. The errors are those of TokenFromHeader.
func TokenFromUserProperties(properties paho.UserProperties) (hlc.Token, error) {
	token, err := onlyToken(properties.GetAll(UserPropertyName))
	if err != nil {
		return hlc.Token{}, fmt.Errorf("fencing: user property %s: %w", UserPropertyName, err)
	}
	return token, nil
}

func tokenText(token hlc.Token) (string, error) {
	if token.IsZero() {
		return "", ErrMissingToken
	}
	text, err := token.MarshalText()
	return string(text), err
}

// onlyToken reads the one token of a list.
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
