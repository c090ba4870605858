package mqtt

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/optionerror"
)

func TestASecretFileMustHoldASecretThatMQTTCanCarry(t *testing.T) {
	for _, test := range []struct {
		name, content string
		ok            bool
	}{
		{"nothing", "", false},
		{"a newline alone", "\n", false},
		{"the most", string(make([]byte, MaxString)) + "\n", true},
		{"more", string(make([]byte, MaxString+1)), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if secret, err := ReadSecret(path); (err == nil) != test.ok {
				t.Errorf("%d bytes, %v", len(secret), err)
			}
		})
	}
}

func TestAnEncryptedKeyIsRefusedWithTheCure(t *testing.T) {
	for name, block := range map[string]*pem.Block{
		"PKCS #8":        {Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("unreadable")},
		"the PEM format": {Type: "RSA PRIVATE KEY", Headers: map[string]string{"DEK-Info": "AES-128-CBC,00"}, Bytes: []byte("unreadable")},
	} {
		path := filepath.Join(t.TempDir(), "key.pem")
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadCertificate(path, path)
		var bad *optionerror.Error
		if !errors.As(err, &bad) || bad.Field != "TLS.KeyFile" || !strings.Contains(err.Error(), "openssl pkey -in "+path+" -out PLAIN") {
			t.Errorf("encrypted as %s does it: %v", name, err)
		}
	}
}
