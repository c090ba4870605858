package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// write leaves a certificate and its key where the broker reads them.
func (a *authority) write(dir string, certificate tls.Certificate) {
	a.t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.pem":         {Type: "CERTIFICATE", Bytes: a.certificate.Raw},
		"broker.pem":     {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]},
		"broker.key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

func TestAStoreAttachesOverTLSToABrokerThatProvesWhoItIs(t *testing.T) {
	trusted, dir, address := newAuthority(t), t.TempDir(), mosquitto.FreeAddress(t)
	trusted.write(dir, trusted.issue(pkix.Name{CommonName: "broker"}))
	_, port, _ := net.SplitHostPort(address)
	broker := mosquitto.Start(t, fmt.Sprintf("listener %s 127.0.0.1\ncafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\n",
		port, filepath.Join(dir, "ca.pem"), filepath.Join(dir, "broker.pem"), filepath.Join(dir, "broker.key.pem")))
	begin := func(config *tls.Config) (*attachment, *syncBuffer) {
		log := new(syncBuffer)
		store, err := server.Attach("mqtts://"+address, server.AttachOptions{TLS: config, Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return serveAttached(t, store), log
	}
	ours := trusted.issue(pkix.Name{CommonName: "store"})
	for _, test := range []struct {
		name   string
		config *tls.Config
		want   string // in the log
	}{
		{"another authority", &tls.Config{RootCAs: newAuthority(t).pool, Certificates: []tls.Certificate{ours}}, "certificate signed by unknown authority"},
		{"the system's authorities", nil, "certificate signed by unknown authority"},
		{"another name", &tls.Config{RootCAs: trusted.pool, Certificates: []tls.Certificate{ours}, ServerName: "broker.test"}, "broker.test"},
		{"no certificate of its own", &tls.Config{RootCAs: trusted.pool}, "certificate required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, log := begin(test.config)
			eventually(t, "it says why", func() bool { return strings.Contains(log.String(), test.want) })
			if a.stop(); a.result() != nil || a.Stats().Attachments != 0 {
				t.Errorf("%v, %+v", a.err, a.Stats())
			}
		})
	}
	a, _ := begin(&tls.Config{RootCAs: trusted.pool, Certificates: []tls.Certificate{ours}})
	a.mustBeReady()
	client := dial(t, broker.Address, transport.Options{})
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}

	trusted.write(dir, trusted.issue(pkix.Name{CommonName: "broker, renewed"}))
	broker.Kill()
	broker.Run()
	eventually(t, "the store is back", func() bool { return a.Stats().Attachments == 2 })
	eventually(t, "its keys are there", func() bool {
		entry, err := client.Get(t.Context(), "k")
		return err == nil && string(entry.Value) == "v"
	})
}
