package access

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"

	"golang.org/x/crypto/bcrypt"
)

const (
	// maxPassword is how many bytes of a password bcrypt reads. It would silently ignore the
	// rest, so a longer one is refused.
	maxPassword = 72
	// maxCost bounds the cost of hashes in a file: checking one password at this cost takes
	// seconds, and each step above doubles the time.
	maxCost = 16

	hashHint = "put there what the command \"tenure password\" prints"
)

// wholeHash is stricter than bcrypt.Cost, which also accepts a hash without its last character or
// with text after it, which no password matches.
var wholeHash = regexp.MustCompile(`^\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// checkHash returns the cost of a hash. Its errors do not quote the hash, which may be a password
// written there by mistake.
func checkHash(hash string) (cost int, err error) {
	cost, err = bcrypt.Cost([]byte(hash))
	if err != nil || !wholeHash.MatchString(hash) {
		return 0, errors.New("password is not a bcrypt hash: " + hashHint)
	}
	if cost > maxCost {
		return 0, fmt.Errorf("the password's hash has cost %d, with which each connection would take too long; "+
			"at most %d: %s", cost, maxCost, hashHint)
	}
	return cost, nil
}

// dummyHash is a hash of a random password. Comparing with it makes the check of an unknown user as
// slow as the check of a known one.
func dummyHash(cost int) []byte {
	return fmt.Appendf(nil, "$2a$%02d$%s%s", cost, "N0body.Kn0ws.Any.Passw", "0rd.That.This.Is.The.Hash.0f...")
}

// checkForm refuses a password that no user can have. It depends on the password alone, so its
// duration does not reveal which users exist.
func checkForm(password []byte) error {
	switch {
	case len(password) == 0:
		return errors.New("neither a password nor a verified client certificate: give the client one of them")
	case len(password) > maxPassword:
		return fmt.Errorf("the password has %d bytes, and bcrypt reads no more than %d: choose a shorter one",
			len(password), maxPassword)
	}
	return nil
}

// compareHash compares a password with a hash. A test counts what it costs.
var compareHash = bcrypt.CompareHashAndPassword

// checkPassword compares a password that checkForm has passed with the hash of a user, or with dummy
// if there is no such user or hash.
func checkPassword(u *user, password, dummy []byte) error {
	hash := dummy
	if u != nil && u.hash != nil {
		hash = u.hash
	}
	mismatch := compareHash(hash, password)
	switch {
	case u == nil:
		return errors.New("no such user")
	case u.hash == nil:
		return errors.New("the user has no password, and there is no verified client certificate")
	case mismatch != nil:
		return errors.New("wrong password")
	}
	return nil
}

// A mark identifies a password of a user. It reveals nothing without the key of its policy, which is random
// and in memory only.
type mark [markSize]byte

const markSize = sha256.Size

func markOf(key, password []byte) (m mark) {
	mac := hmac.New(sha256.New, key)
	mac.Write(password)
	mac.Sum(m[:0])
	return m
}

// remembers reports whether the latest correct password of a user had this mark.
func (u *user) remembers(m mark) bool {
	if u == nil {
		return false
	}
	good := u.good.Load()
	return good != nil && hmac.Equal(good[:], m[:])
}
