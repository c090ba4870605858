package tlspolicy_test

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/tlspolicy"
)

func TestRestrictLeavesSuitesWithECDHEAndAEADOnly(t *testing.T) {
	var config tls.Config
	tlspolicy.Restrict(&config)
	if config.MinVersion != tls.VersionTLS12 || len(config.CipherSuites) == 0 {
		t.Fatalf("TLS %#x with %d suites", config.MinVersion, len(config.CipherSuites))
	}
	for _, suite := range config.CipherSuites {
		name := tls.CipherSuiteName(suite)
		if !strings.HasPrefix(name, "TLS_ECDHE_") || !strings.Contains(name, "_GCM_") && !strings.Contains(name, "CHACHA20_POLY1305") {
			t.Errorf("%s is offered", name)
		}
	}
}

func TestRestrictKeepsWhatIsSet(t *testing.T) {
	chosen := []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}
	config := tls.Config{MinVersion: tls.VersionTLS13, CipherSuites: chosen}
	tlspolicy.Restrict(&config)
	if config.MinVersion != tls.VersionTLS13 || !slices.Equal(config.CipherSuites, chosen) {
		t.Errorf("TLS %#x with %v", config.MinVersion, config.CipherSuites)
	}
}
