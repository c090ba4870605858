package mqtt

import (
	"os"
	"path/filepath"
	"testing"
)

func TestASecretFileMustHoldASecretThatMQTTCanCarry(t *testing.T) {
	for _, test := range []struct {
		name, content string
		ok            bool
	}{
		{"nothing", "", false},
		{"a newline alone", "\n", false},
		{"the most", string(make([]byte, MaxSecret)) + "\n", true},
		{"more", string(make([]byte, MaxSecret+1)), false},
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
