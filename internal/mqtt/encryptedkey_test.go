package mqtt

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The keys in testdata/keys were made for these tests, with
//
//	openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | openssl pkcs8 -topk8 -passout pass:secret …
//
// and -v2, -v2prf or -scrypt; proc-type.pem with openssl genrsa -traditional -aes128.
func readTestKey(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "keys", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAnEncryptedPrivateKeyIsDecrypted(t *testing.T) {
	for _, name := range []string{"aes-128-cbc", "aes-192-cbc", "aes-256-cbc", "aes-128-cbc-sha1", "aes-256-cbc-sha512"} {
		t.Run(name, func(t *testing.T) {
			text := readTestKey(t, name+".pem")
			if !isEncryptedKey(text) {
				t.Error("it is not seen to be encrypted")
			}
			plain, err := decryptKey(text, []byte("secret"))
			if err != nil {
				t.Fatal(err)
			}
			block, rest := pem.Decode(plain)
			if block == nil || len(rest) > 0 || isEncryptedKey(plain) {
				t.Fatalf("%s", plain)
			}
			if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAPrivateKeyThatCannotBeDecryptedSaysWhy(t *testing.T) {
	good := readTestKey(t, "aes-256-cbc.pem")
	plain, err := decryptKey(good, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(good)
	short := pem.EncodeToMemory(&pem.Block{Type: encryptedKeyType, Bytes: block.Bytes[:40]})
	for _, test := range []struct {
		name           string
		text           []byte
		password, want string
	}{
		{"a wrong password", good, "Secret", "password of the private key is wrong"},
		{"no password", good, "", "password of the private key is wrong"},
		{"not PEM", []byte("key"), "secret", "no private key in PEM"},
		{"not encrypted", plain, "secret", "not encrypted"},
		{"encrypted by PEM itself", readTestKey(t, "proc-type.pem"), "secret", "openssl pkcs8 -topk8"},
		{"DES", readTestKey(t, "des3.pem"), "secret", "openssl pkcs8 -topk8"},
		{"scrypt", readTestKey(t, "scrypt.pem"), "secret", "openssl pkcs8 -topk8"},
		{"cut short", short, "secret", "not an encrypted private key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if key, err := decryptKey(test.text, []byte(test.password)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q, %v; want an error that says %q", key, err, test.want)
			}
		})
	}
}

// Reading any file ends, and the result is PEM.
func FuzzEncryptedKey(f *testing.F) {
	for _, name := range []string{"aes-256-cbc.pem", "aes-128-cbc-sha1.pem", "des3.pem", "scrypt.pem", "proc-type.pem"} {
		f.Add(readTestKey(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		key, err := decryptKey(text, []byte("secret"))
		if err != nil {
			return
		}
		if block, _ := pem.Decode(key); block == nil || block.Type != "PRIVATE KEY" {
			t.Errorf("%q", key)
		}
		if !isEncryptedKey(text) {
			t.Error("what was decrypted was not seen to be encrypted")
		}
	})
}

func TestAPrivateKeyThatWouldTakeTooLongToDecryptIsRefused(t *testing.T) {
	block, _ := pem.Decode(readTestKey(t, "aes-256-cbc.pem"))
	few := []byte{2, 2, 0x08, 0x00} // 2,048 iterations, which this key has
	if bytes.Count(block.Bytes, few) != 1 {
		t.Fatal("the key does not have what is to be replaced")
	}
	for _, many := range [][]byte{{2, 2, 0x80, 0x00}, {2, 2, 0, 0}} { // negative, none
		text := pem.EncodeToMemory(&pem.Block{Type: encryptedKeyType, Bytes: bytes.Replace(block.Bytes, few, many, 1)})
		if _, err := decryptKey(text, []byte("secret")); err == nil || errors.Is(err, errWrongKeyPassword) {
			t.Errorf("% x: %v", many, err)
		}
	}
	var key encryptedKey
	if _, err := asn1.Unmarshal(block.Bytes, &key); err != nil {
		t.Fatal(err)
	}
	key.Algorithm.PBES2.Derivation.PBKDF2.Iterations = math.MaxInt32
	text := pem.EncodeToMemory(&pem.Block{Type: encryptedKeyType, Bytes: marshal(t, key)})
	if _, err := decryptKey(text, []byte("secret")); err == nil || !strings.Contains(err.Error(), "2147483647 iterations") {
		t.Errorf("%v, want an error that says how many iterations", err)
	}
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
