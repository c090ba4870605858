package attach_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestAStoreAttachesOverTLSToABrokerThatProvesItsIdentity(t *testing.T) {
	t.Parallel()
	trusted, dir, address := certificates.New(t, "authority"), t.TempDir(), mosquitto.FreeAddress(t)
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "broker.pem"), filepath.Join(dir, "broker.key")
	certificates.Write(t, trusted.Own, ca, "")
	certificates.Write(t, trusted.Issue(pkix.Name{CommonName: "broker"}), cert, key)
	_, port, _ := net.SplitHostPort(address)
	broker := mosquitto.Start(t, fmt.Sprintf("listener %s 127.0.0.1\ncafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate true\n",
		port, ca, cert, key))
	begin := func(config *tls.Config) (*testsupport.Attachment, *logbuffer.Buffer) {
		log := new(logbuffer.Buffer)
		store, err := attach.New("mqtts://"+address, attach.Options{TLS: config, Logger: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		return testsupport.ServeAttached(t, store), log
	}
	ours := trusted.Issue(pkix.Name{CommonName: "store"})
	for _, test := range []struct {
		name   string
		config *tls.Config
		want   string // in the log
	}{
		{"another authority", nil, "signed by an unknown authority"},
		{"no certificate of its own", &tls.Config{RootCAs: trusted.Pool}, "asked for a client certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, log := begin(test.config)
			testsupport.Eventually(t, "it says why", func() bool { return strings.Contains(log.String(), test.want) })
			if a.Stop(); a.Result() != nil || a.Stats().Attachments != 0 {
				t.Errorf("%v, %+v", a.Result(), a.Stats())
			}
		})
	}
	a, _ := begin(&tls.Config{RootCAs: trusted.Pool, Certificates: []tls.Certificate{ours}})
	a.MustBeReady()
	client := testsupport.Dial(t, broker.Address, transport.Options{})
	mustSet(t, client, "k", "v")
}

func TestAStoreAttachesOverWebSocket(t *testing.T) {
	t.Parallel()
	address := mosquitto.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	broker := mosquitto.Start(t, fmt.Sprintf("listener %s 127.0.0.1\nprotocol websockets\n", port))
	store, err := attach.New("ws://"+address+"/mqtt", attach.Options{WebSocket: tenurews.Upgrade})
	if err != nil {
		t.Fatal(err)
	}
	testsupport.ServeAttached(t, store).MustBeReady()
	testsupport.MustHold(t, testsupport.Dial(t, broker.Address, transport.Options{}), "k", "")
}
