package command

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheKeyOfACertificateMayBeEncrypted(t *testing.T) {
	keys := filepath.Join("..", "..", "..", "internal", "mqttnet", "testdata", "keys")
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := certificateFlags{filepath.Join(keys, "certificate.pem"), filepath.Join(keys, "aes-256-cbc.pem"), password}
	if certificate, err := flags.read(); err != nil || certificate.PrivateKey == nil {
		t.Error(err)
	}
	flags.keyPassword = filepath.Join(keys, "no-password")
	if _, err := flags.read(); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "--tls-key-password-file: ") {
		t.Errorf("without the file: %v", err)
	}
}
