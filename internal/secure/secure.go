// Package secure says which TLS both ends of a connection speak: TLS 1.3, and of TLS 1.2
// only the cipher suites with forward secrecy (ECDHE) and authenticated encryption (AEAD).
// TLS 1.2 also has suites in CBC mode, which Go offers by default for peers of long ago;
// their padding has been a way to decrypt what was sent, again and again.
package secure

import "crypto/tls"

// Restrict sets what a configuration leaves open: TLS 1.2 as the lowest version, and the
// suites of TLS 1.2. What is set already stays as it is; TLS 1.3 has only suites that are
// AEAD. It changes config, so give it a clone of what belongs to others.
func Restrict(config *tls.Config) {
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	if config.CipherSuites == nil {
		config.CipherSuites = []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		}
	}
}
