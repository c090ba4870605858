// Package tlspolicy restricts TLS on both ends of a connection: to TLS 1.3, and in TLS 1.2 to
// the cipher suites with forward secrecy (ECDHE) and authenticated encryption (AEAD). TLS
// 1.2 also has suites in CBC mode, which Go offers by default for old peers; attacks on
// their padding have decrypted connections several times.
package tlspolicy

import "crypto/tls"

// Restrict sets MinVersion to TLS 1.2 and CipherSuites to the suites of TLS 1.2, where config
// leaves them unset. TLS 1.3 has only suites with AEAD. It changes config: pass a clone of
// one that you share.
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
