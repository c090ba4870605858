package transport

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
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
// AIO_MQTT_CLIENT_ID the client id is random, and the suffix has no effect.
//
// The error names each variable that is missing or cannot be read, in a line each, and what to do. Dial
// checks the rest: files, and options that exclude or need each other. The address and the options are
// usable only if the error is nil.
func FromEnv(suffix string) (address string, options Options, err error) {
	var e environment
	host := os.Getenv("AIO_BROKER_HOSTNAME")
	_, unusable := mqtt.ParseAddress("mqtts://" + net.JoinHostPort(host, "1"))
	if host == "" {
		e.wrong("AIO_BROKER_HOSTNAME", "is not set; it names the host of the broker")
	} else if unusable != nil || strings.Contains(host, ",") {
		e.wrong("AIO_BROKER_HOSTNAME", "is %q; give a host name or an IP address alone", host)
	}
	port := e.number("AIO_BROKER_TCP_PORT", 8883)
	scheme := "mqtts://"
	if encrypted, err := strconv.ParseBool(cmp.Or(os.Getenv("AIO_MQTT_USE_TLS"), "true")); err != nil {
		e.wrong("AIO_MQTT_USE_TLS", "is %q; give true or false, or leave it unset for true", os.Getenv("AIO_MQTT_USE_TLS"))
	} else if !encrypted {
		scheme = "mqtt://"
	}
	address = scheme + net.JoinHostPort(host, strconv.Itoa(port))
	options = Options{
		ClientID:     os.Getenv("AIO_MQTT_CLIENT_ID"),
		KeepAlive:    time.Duration(e.number("AIO_MQTT_KEEP_ALIVE", 60)) * time.Second,
		Username:     os.Getenv("AIO_MQTT_USERNAME"),
		PasswordFile: os.Getenv("AIO_MQTT_PASSWORD_FILE"),
		TokenFile:    os.Getenv("AIO_SAT_FILE"),
		TLS: TLSOptions{
			CAFile:   os.Getenv("AIO_TLS_CA_FILE"),
			CertFile: os.Getenv("AIO_TLS_CERT_FILE"),
			KeyFile:  os.Getenv("AIO_TLS_KEY_FILE"),
		},
	}
	if options.ClientID != "" {
		options.ClientID += suffix
	}
	if os.Getenv("AIO_TLS_KEY_PASSWORD_FILE") != "" {
		e.wrong("AIO_TLS_KEY_PASSWORD_FILE", "is set, and only a plain key can be read: write one with "+
			"\"openssl pkey -in KEY -out PLAIN\", give it mode 0600, and set AIO_TLS_KEY_FILE to it alone")
	}
	if err := errors.Join(e.problems...); err != nil {
		return "", Options{}, fmt.Errorf("transport: environment: %w", err)
	}
	return address, options, nil
}

// environment collects what is wrong with variables.
type environment struct{ problems []error }

func (e *environment) wrong(name, format string, arguments ...any) {
	e.problems = append(e.problems, fmt.Errorf(name+" "+format, arguments...))
}

// number returns a variable that is a number of 16 bits and not 0.
func (e *environment) number(name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 || number > math.MaxUint16 {
		e.wrong(name, "is %q; give a whole number from 1 to %d, or leave it unset for %d", text, math.MaxUint16, otherwise)
		return otherwise // which makes no other variable look wrong
	}
	return number
}
