package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// expiresSoon is when a certificate counts as about to expire.
const expiresSoon = 14 * 24 * time.Hour

// handshake examines TLS. Its own handshake takes each certificate, so that it can say what is wrong
// with one; the connection over which requests go does not.
func (d *doctor) handshake(ctx context.Context, server *url.URL) bool {
	const name = "TLS"
	options := mqtt.TLS(d.options.Client.TLS)
	if !mqtt.IsEncrypted(server) {
		if options.CAFile != "" || options.CertFile != "" || options.KeyFile != "" || options.Config != nil {
			return d.at(server, failed(Usage, name, "flags of TLS are given, and "+server.Scheme+" does not encrypt", "write mqtts or wss in --broker, or leave out the flags of TLS"))
		}
		if d.hasSecret() && !isLoopback(server) {
			return d.at(server, warning(name, server.Scheme+" does not encrypt, so the network can read the password", "write mqtts or wss in --broker"))
		}
		return d.at(server, skipped(name, server.Scheme+" does not encrypt"))
	}
	config, err := options.ClientConfig(server)
	if err != nil {
		return d.at(server, failed(Usage, name, d.options.Named(err).Error(), fileCure))
	}
	if step := d.examineOwn(name, config); step != nil && !d.at(server, *step) {
		return false
	}
	ctx, cancel := d.step(ctx)
	defer cancel()
	conn, err := d.dialer()(ctx, "tcp", server.Host)
	if err != nil {
		return d.at(server, failed(Unreachable, name, fmt.Sprintf("no connection: %v", err), "try again: the step before could connect"))
	}
	defer conn.Close()
	open := config.Clone()
	open.InsecureSkipVerify = true // verify below says what is wrong
	encrypted := tls.Client(conn, open)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return d.at(server, d.handshakeFailure(name, server, err))
	}
	return d.at(server, d.verify(name, server, config, encrypted.ConnectionState()))
}

// handshakeFailure explains a handshake without an end.
func (d *doctor) handshakeFailure(name string, server *url.URL, err error) Step {
	var record tls.RecordHeaderError
	found := fmt.Sprintf("the handshake failed: %v", err)
	switch plain := map[string]string{"mqtts": "mqtt", "tls": "mqtt", "ssl": "mqtt", "wss": "ws"}[server.Scheme]; {
	case errors.As(err, &record), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return failed(Unreachable, name, found, fmt.Sprintf("this port does not speak TLS, it seems: write %s://%s, or the port for TLS", plain, server.Host))
	case errors.Is(err, context.DeadlineExceeded):
		return failed(Unreachable, name, found, fmt.Sprintf("nothing answers a TLS handshake here: write %s://%s if this port is without TLS", plain, server.Host))
	case isAlert(err):
		return failed(Refused, name, found, certificateCure)
	}
	return failed(Unreachable, name, found, "compare the versions and cipher suites of the broker: TLS 1.2 with ECDHE and AEAD is the least")
}

// verify says whether a broker's certificate is good, as the connection's own check does later.
func (d *doctor) verify(name string, server *url.URL, config *tls.Config, state tls.ConnectionState) Step {
	leaf, now := state.PeerCertificates[0], d.options.Now()
	intermediates, expires := x509.NewCertPool(), leaf.NotAfter
	for _, certificate := range state.PeerCertificates[1:] {
		intermediates.AddCert(certificate)
		if certificate.NotAfter.Before(expires) {
			expires = certificate.NotAfter
		}
	}
	d.report.CertificateExpires = &expires
	if expires.Before(now) {
		return failed(Unreachable, name, fmt.Sprintf("the broker's certificate or one of its chain expired %s ago, on %s", days(now.Sub(expires)), date(expires)), "renew the broker's certificate; if that date is in the future, correct this machine's clock")
	}
	if leaf.NotBefore.After(now) {
		return failed(Unreachable, name, fmt.Sprintf("the broker's certificate is not valid before %s", date(leaf.NotBefore)), "check this machine's clock, then the certificate")
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: config.RootCAs, Intermediates: intermediates, CurrentTime: now}); err != nil {
		cure := "the authority that issued it must be in the file of --tls-ca: name that file"
		if config.RootCAs != nil {
			cure = "the file of --tls-ca must hold the authority that issued it, and the broker must send intermediate certificates"
		}
		if leaf.Issuer.String() == leaf.Subject.String() {
			cure = "it is self-signed: give it with --tls-ca, or have one issued by an authority"
		}
		return failed(Unreachable, name, fmt.Sprintf("the chain of the broker's certificate cannot be verified: %v (issued by %s)", err, issuer(leaf)), cure)
	}
	if err := leaf.VerifyHostname(config.ServerName); err != nil {
		return failed(Unreachable, name, fmt.Sprintf("the broker's certificate is not for %s: %v", config.ServerName, err), "connect by a name in the certificate ("+mqtt.CertificateNames(leaf)+"), or have it issued for this name too")
	}
	found := fmt.Sprintf("%s, %s, for %s, issued by %s, expires in %s (%s)", tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite),
		mqtt.CertificateNames(leaf), issuer(leaf), days(expires.Sub(now)), date(expires))
	if expires.Sub(now) < expiresSoon {
		return warning(name, found, "renew the broker's certificate soon")
	}
	return ok(name, found)
}

// examineOwn examines the certificate of this client; nil: there is none, or it is good.
func (d *doctor) examineOwn(name string, config *tls.Config) *Step {
	if len(config.Certificates) == 0 || len(config.Certificates[0].Certificate) == 0 {
		return nil
	}
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		return nil // the handshake will say it
	}
	var step Step
	switch left := leaf.NotAfter.Sub(d.options.Now()); {
	case left < 0:
		step = failed(Refused, name, fmt.Sprintf("this client's certificate expired %s ago, on %s", days(-left), date(leaf.NotAfter)), "renew the certificate of --tls-cert")
	case left < expiresSoon:
		step = warning(name, fmt.Sprintf("this client's certificate expires in %s (%s)", days(left), date(leaf.NotAfter)), "renew the certificate of --tls-cert soon")
	default:
		return nil
	}
	return &step
}

// isAlert reports whether the other end of a TLS connection has refused something.
func isAlert(err error) bool {
	var alert tls.AlertError
	return errors.As(err, &alert) || strings.Contains(err.Error(), "remote error: tls")
}

func issuer(leaf *x509.Certificate) string {
	if name := leaf.Issuer.String(); name != "" {
		return name
	}
	return "an authority without a name"
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// days returns a duration in days, or in a smaller unit if it is less than two of them.
func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
