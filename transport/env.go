package transport

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// FromEnv returns an address and options for [Dial], from the environment variables that
// Azure IoT Operations sets for workloads:
//
//	AIO_BROKER_HOSTNAME        host name of the broker; required
//	AIO_BROKER_TCP_PORT        its port; default 8883
//	AIO_MQTT_USE_TLS           true or false; default true
//	AIO_TLS_CA_FILE            TLSOptions.CAFile
//	AIO_TLS_CERT_FILE          TLSOptions.CertFile
//	AIO_TLS_KEY_FILE           TLSOptions.KeyFile
//	AIO_TLS_KEY_PASSWORD_FILE  refused: a KeyFile must not be encrypted
//	AIO_MQTT_CLIENT_ID         Options.ClientID
//	AIO_MQTT_USERNAME          Options.Username
//	AIO_MQTT_PASSWORD_FILE     Options.PasswordFile
//	AIO_MQTT_KEEP_ALIVE        Options.KeepAlive, in seconds; default 60
//	AIO_SAT_FILE               Options.TokenFile
//
// An empty variable counts as not set. The keep-alive decides how soon the client notices a
// half-open connection, and which leases can have instant failover: deployments rely on 60.
//
// Warning: a broker ends the older of two connections with one client id. If another library
// connects with AIO_MQTT_CLIENT_ID too, this client ends with ErrSessionTakenOver. Use
// a suffix beside an SDK of Azure IoT Operations.
//
// The suffix of the client id, such as "-lease", is for a process in which another library connects
// with AIO_MQTT_CLIENT_ID; "" otherwise. To the store and the
// broker's access rules these are two clients: allow the second name too. Without
// AIO_MQTT_CLIENT_ID the client id is random, and the suffix has no effect. The error also
// reports a suffix that cannot be part of a client id.
//
// The error names everything that is wrong, in a line each, with the variable and what to
// do. The address and the options are usable if and only if it is nil.
func FromEnv(suffix string) (address string, options Options, err error) {
	var e environment
	host := os.Getenv("AIO_BROKER_HOSTNAME")
	if host == "" {
		e.wrong("AIO_BROKER_HOSTNAME", "is not set; it names the host of the broker")
	}
	port := e.number("AIO_BROKER_TCP_PORT", 8883, math.MaxUint16)
	encrypted := e.truth("AIO_MQTT_USE_TLS", true)
	options = Options{
		ClientID:     os.Getenv("AIO_MQTT_CLIENT_ID"),
		KeepAlive:    time.Duration(e.number("AIO_MQTT_KEEP_ALIVE", 60, math.MaxUint16)) * time.Second,
		Username:     os.Getenv("AIO_MQTT_USERNAME"),
		PasswordFile: e.file("AIO_MQTT_PASSWORD_FILE"),
		TokenFile:    e.file("AIO_SAT_FILE"),
		TLS: TLSOptions{
			CAFile:   e.file("AIO_TLS_CA_FILE"),
			CertFile: e.file("AIO_TLS_CERT_FILE"),
			KeyFile:  e.file("AIO_TLS_KEY_FILE"),
		},
	}
	if bad := badClientID(suffix); bad != "" {
		e.wrong("AIO_MQTT_CLIENT_ID", "gets the suffix %q, which %s", suffix, bad)
	} else if bad := badClientID(options.ClientID); bad != "" {
		e.wrong("AIO_MQTT_CLIENT_ID", "is %q, which %s", options.ClientID, bad)
	} else if options.ClientID != "" {
		options.ClientID += suffix
	}
	e.exclude("AIO_SAT_FILE", "AIO_MQTT_USERNAME")
	e.exclude("AIO_SAT_FILE", "AIO_MQTT_PASSWORD_FILE")
	e.needs("AIO_MQTT_PASSWORD_FILE", "AIO_MQTT_USERNAME")
	e.needs("AIO_TLS_CERT_FILE", "AIO_TLS_KEY_FILE")
	e.needs("AIO_TLS_KEY_FILE", "AIO_TLS_CERT_FILE")
	if os.Getenv("AIO_TLS_KEY_PASSWORD_FILE") != "" {
		e.wrong("AIO_TLS_KEY_PASSWORD_FILE", "is set, and only a plain key can be read: write one with "+
			"\"openssl pkey -in KEY -out PLAIN\", give it mode 0600, and set AIO_TLS_KEY_FILE to it alone")
	}
	address = "mqtt://"
	if encrypted {
		address = "mqtts://"
	} else {
		for _, name := range []string{"AIO_TLS_CA_FILE", "AIO_TLS_CERT_FILE", "AIO_TLS_KEY_FILE"} {
			if os.Getenv(name) != "" {
				e.wrong(name, "is set, and AIO_MQTT_USE_TLS is false; leave one of them away")
			}
		}
	}
	address += net.JoinHostPort(host, strconv.Itoa(port))
	server, err := mqtt.ParseAddress(address)
	if host != "" && (err != nil || strings.Contains(host, ",")) {
		e.wrong("AIO_BROKER_HOSTNAME", "is %q; give a host name or an IP address alone", host)
	}
	if len(e.problems) == 0 {
		e.use(options, server)
	}
	if err := errors.Join(e.problems...); err != nil {
		return "", Options{}, fmt.Errorf("transport: environment: %w", err)
	}
	return address, options, nil
}

// environment reads variables and collects what is wrong with them.
type environment struct {
	problems []error
}

func (e *environment) wrong(name, format string, arguments ...any) {
	e.problems = append(e.problems, fmt.Errorf("%s %w", name, fmt.Errorf(format, arguments...)))
}

func (e *environment) number(name string, otherwise, most int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 || number > most {
		e.wrong(name, "is %q; give a whole number from 1 to %d, or leave it unset for %d", text, most, otherwise)
		return otherwise // which makes no other variable look wrong
	}
	return number
}

func (e *environment) truth(name string, otherwise bool) bool {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	truth, err := strconv.ParseBool(text)
	if err != nil {
		e.wrong(name, "is %q; give true or false, or leave it unset for %t", text, otherwise)
	}
	return truth
}

// file returns the name of a file and checks that the file can be read.
func (e *environment) file(name string) string {
	path := os.Getenv(name)
	if path == "" {
		return ""
	}
	file, err := os.Open(path)
	if err != nil {
		e.wrong(name, "names a file that cannot be read: %w; mount it, or correct the name", err)
		return path
	}
	_ = file.Close() // nothing was written
	return path
}

// fileVariables maps the options that name files to their variables.
var fileVariables = map[string]string{
	"PasswordFile": "AIO_MQTT_PASSWORD_FILE",
	"TokenFile":    "AIO_SAT_FILE",
	"CAFile":       "AIO_TLS_CA_FILE",
	"CertFile":     "AIO_TLS_CERT_FILE",
	"KeyFile":      "AIO_TLS_KEY_FILE",
}

// use checks the content of the files.
func (e *environment) use(options Options, server *url.URL) {
	var bad *mqtt.FileError
	if err := options.checkCredentials([]*url.URL{server}); errors.As(err, &bad) {
		e.wrong(fileVariables[bad.Option], "names a file that cannot be used: %w; replace the file, or correct the name", bad.Err)
	}
}

func (e *environment) exclude(one, other string) {
	if os.Getenv(one) != "" && os.Getenv(other) != "" {
		e.wrong(one, "and %s are both set; leave one of them away", other)
	}
}

func (e *environment) needs(name, other string) {
	if os.Getenv(name) != "" && os.Getenv(other) == "" {
		e.wrong(name, "is set without %s; set that too, or leave it unset", other)
	}
}
