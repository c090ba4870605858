package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// Attacks on the TLS handshake, which comes before the login.
var encryptedAttacks = []attack{{
	name: "replayed ClientHellos with P-521",
	what: "sends one ClientHello, which offers P-521 only, on 64 connections at a time, as fast as it gets answers.",
	key:  "P-256",
	p99:  20 * time.Millisecond,
	run:  replayHello(tls.CurveP521),
}, {
	name: "replayed ClientHellos and RSA-4096",
	what: "sends one ClientHello on 64 connections at a time to a server whose certificate has a key of RSA-4096, as fast as it gets answers.",
	key:  "RSA-4096",
	p99:  20 * time.Millisecond,
	run:  replayHello(tls.X25519),
}, {
	name:     "made-up authorities",
	what:     "shows, on 16 connections at a time, a client certificate and a hundred authorities with keys of P-521 that could have issued it, to a server with --client-ca.",
	key:      "P-256",
	users:    true, // so that the healthy client needs no certificate
	clientCA: true,
	p99:      20 * time.Millisecond,
	run: func(ctx context.Context, t *target) {
		certificate, err := madeUp(100)
		t.need(err)
		config := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		}}
		t.keepConnecting(ctx, 16, func(conn net.Conn) {
			_, _ = tls.Client(conn, config).Read(make([]byte, 1)) // ends when the server has verified it
		})
	},
}}

// replayHello returns an attack that sends the same ClientHello again and again.
func replayHello(curve tls.CurveID) func(context.Context, *target) {
	return func(ctx context.Context, t *target) {
		near, far := net.Pipe()
		go func() { // ends with the pipe
			_ = tls.Client(near, &tls.Config{InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{curve}}).Handshake()
		}()
		hello := make([]byte, 8<<10)
		n, err := far.Read(hello)
		_ = far.Close()
		t.need(err)
		t.keepConnecting(ctx, 64, func(conn net.Conn) {
			if _, err := conn.Write(hello[:n]); err == nil {
				_, _ = io.ReadFull(conn, make([]byte, 6))
			}
		})
	}
}

// keepConnecting opens connections for the duration of the attack, some at a time, and calls use
// with each.
func (t *target) keepConnecting(ctx context.Context, together int, use func(net.Conn)) {
	ctx = t.lasting(ctx)
	concurrently(together, together, func(int) {
		for ctx.Err() == nil {
			conn, err := t.dial(ctx)
			if err != nil {
				sleep.For(ctx, 5*time.Millisecond)
				continue
			}
			_ = conn.SetDeadline(time.Now().Add(readWithin))
			use(conn)
			_ = conn.Close()
		}
	})
}

// madeUp returns a certificate that claims to be issued by the server's authority, followed by
// authorities of this name, none of which has signed it.
func madeUp(authorities int) (*tls.Certificate, error) {
	keys := make([]*ecdsa.PrivateKey, 3) // the client's, the authorities', and what has signed
	for i, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P521(), elliptic.P521()} {
		var err error
		if keys[i], err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
			return nil, err
		}
	}
	authority := authorityTemplate()
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mallory"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, &keys[0].PublicKey, keys[2])
	if err != nil {
		return nil, err
	}
	certificate := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: keys[0]}
	for i := range authorities {
		authority.SerialNumber = big.NewInt(int64(2 + i))
		if der, err = x509.CreateCertificate(rand.Reader, authority, authority, &keys[1].PublicKey, keys[1]); err != nil {
			return nil, err
		}
		certificate.Certificate = append(certificate.Certificate, der)
	}
	return certificate, nil
}

func authorityTemplate() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// writeCertificate writes a certificate that has signed itself, and its key, and returns flags for them.
func (a attack) writeCertificate(folder string) ([]string, error) {
	var key crypto.Signer
	var err error
	if a.key == "RSA-4096" {
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, err
	}
	template := authorityTemplate()
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificatePath, keyPath := filepath.Join(folder, "certificate.pem"), filepath.Join(folder, "key.pem")
	if err := os.WriteFile(certificatePath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(keyPath, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return nil, err
	}
	flags := []string{"--tls-cert", certificatePath, "--tls-key", keyPath}
	if a.clientCA {
		flags = append(flags, "--client-ca", certificatePath)
	}
	return flags, nil
}
