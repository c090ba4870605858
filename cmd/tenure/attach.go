package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
	"github.com/tenurelock/tenure/server"
)

// attachSettings are the flags of serve about somebody else's broker.
type attachSettings struct {
	broker       string
	user         string
	passwordFile string
	ca           string
	certificate  string
	key          string
	probe        int
}

// check refuses flags that would have no effect: who gives them believes in something
// that is not so.
func (s *attachSettings) check(changed func(name string) bool) error {
	withAttach := []string{"attach-user", "attach-password-file", "attach-ca", "attach-cert", "attach-key", "attach-probe"}
	withoutAttach := []string{"addr", "tls-cert", "tls-key", "client-ca", "auth", "insecure", "max-packet-size",
		"password-checks", "max-unauthenticated", "max-unauthenticated-per-address",
		"max-memory", "max-outgoing-bytes", "max-all-outgoing-bytes", "max-session-bytes", "max-session-messages", "max-all-session-bytes",
		"max-sessions-per-user", "max-subscriptions", "retain", "max-retained", "max-retained-bytes"}
	if s.broker == "" {
		for _, name := range withAttach {
			if changed(name) {
				return fmt.Errorf("--%s is about the broker of --attach; give that too", name)
			}
		}
		return nil
	}
	for _, name := range withoutAttach {
		if changed(name) {
			return fmt.Errorf("--%s is about the broker inside, and with --attach there is none; tell the broker of --attach instead", name)
		}
	}
	return nil
}

// attachOptions are the settings of an attached store, and what they have in common with a broker inside.
func (s *serveSettings) attachOptions() (server.AttachOptions, error) {
	options := server.AttachOptions{
		User:       s.attach.user,
		Store:      s.Store,
		Dialect:    s.Dialect,
		MaxClients: s.MaxClients,
		Logger:     s.Logger,
	}
	if s.attach.probe < 0 {
		return options, fmt.Errorf("--attach-probe %d is negative; 0 means no probe", s.attach.probe)
	}
	if options.ProbeMessages = s.attach.probe; options.ProbeMessages == 0 {
		options.ProbeMessages = -1
	}
	if s.attach.passwordFile != "" {
		password, err := os.ReadFile(s.attach.passwordFile)
		if err != nil {
			return options, fmt.Errorf("--attach-password-file: %w", err)
		}
		options.Password = []byte(strings.TrimRight(string(password), "\r\n"))
		if len(options.Password) == 0 { // with which it would connect without any
			return options, fmt.Errorf("--attach-password-file: %s is empty", s.attach.passwordFile)
		}
	}
	config, err := s.attach.tlsConfig()
	options.TLS = config
	return options, err
}

// tlsConfig returns how to meet the broker; nil where no flag is about that.
func (s *attachSettings) tlsConfig() (*tls.Config, error) {
	if s.ca == "" && s.certificate == "" && s.key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.ca != "" {
		text, err := os.ReadFile(s.ca)
		if err != nil {
			return nil, fmt.Errorf("--attach-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--attach-ca: %s holds no certificate in PEM", s.ca)
		}
	}
	if s.certificate == "" && s.key == "" {
		return config, nil
	}
	if s.certificate == "" || s.key == "" {
		return nil, errors.New("a certificate needs both --attach-cert and --attach-key")
	}
	// Read for each connection, since certificates are replaced before they end.
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(s.certificate, s.key)
		if err != nil {
			return nil, fmt.Errorf("--attach-cert and --attach-key: %w", err)
		}
		return &pair, nil
	}
	if _, err := read(); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	return config, nil
}

func (s *serveSettings) runAttached(cmd *cobra.Command, hangups <-chan os.Signal) error {
	options, err := s.attachOptions()
	if err != nil {
		return err
	}
	store, err := server.Attach(s.attach.broker, options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		select {
		case <-store.Ready():
			fmt.Fprintf(cmd.OutOrStdout(), "attached to %s\n", s.attach.broker)
			s.warnOfMemory()
		case <-ctx.Done():
		}
	})
	// The files of --attach-cert and --attach-key are read for each connection anyway.
	tasks.Go(func() { s.reloadOnSignal(ctx, hangups, nil) })
	tasks.Go(func() { memory.Release(ctx, func() int64 { return heldByStore(store.Usage()) }) })
	err = store.Serve(ctx)
	cancel()
	tasks.Wait()
	if errors.Is(err, server.ErrAnotherStore) {
		return fmt.Errorf("%w; one broker has one store", err)
	}
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "stopped")
	}
	return err
}
