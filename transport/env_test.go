package transport

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// environmentOf sets these variables for a test, and leaves all others of ours empty.
func environmentOf(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, name := range []string{
		"AIO_BROKER_HOSTNAME", "AIO_BROKER_TCP_PORT", "AIO_MQTT_USE_TLS",
		"AIO_TLS_CA_FILE", "AIO_TLS_CERT_FILE", "AIO_TLS_KEY_FILE", "AIO_TLS_KEY_PASSWORD_FILE",
		"AIO_MQTT_CLIENT_ID", "AIO_MQTT_USERNAME", "AIO_MQTT_PASSWORD_FILE", "AIO_MQTT_KEEP_ALIVE", "AIO_SAT_FILE",
	} {
		t.Setenv(name, variables[name])
	}
}

func TestTheEnvironmentSaysHowToConnect(t *testing.T) {
	const file = "/no/such/file" // Dial reads it
	for _, test := range []struct {
		name      string
		variables map[string]string
		address   string
		want      func(*Options)
	}{
		{"the least", nil, "mqtts://broker:8883", func(*Options) {}},
		{"without TLS", map[string]string{"AIO_MQTT_USE_TLS": "false", "AIO_BROKER_TCP_PORT": "1883"}, "mqtt://broker:1883", func(*Options) {}},
		{"IPv6", map[string]string{"AIO_BROKER_HOSTNAME": "::1"}, "mqtts://[::1]:8883", func(*Options) {}},
		{"a client certificate", map[string]string{
			"AIO_TLS_CA_FILE": "/ca.pem", "AIO_TLS_CERT_FILE": "/cert.pem", "AIO_TLS_KEY_FILE": "/key.pem",
		}, "mqtts://broker:8883", func(o *Options) {
			o.TLS = TLSOptions{CAFile: "/ca.pem", CertFile: "/cert.pem", KeyFile: "/key.pem"}
		}},
		{"a user", map[string]string{
			"AIO_MQTT_CLIENT_ID": "node-a", "AIO_MQTT_USERNAME": "user", "AIO_MQTT_PASSWORD_FILE": file, "AIO_MQTT_KEEP_ALIVE": "7",
		}, "mqtts://broker:8883", func(o *Options) {
			o.ClientID, o.Username, o.PasswordFile, o.KeepAlive = "node-a", "user", file, 7*time.Second
		}},
		{"a suffix, for another SDK in the process has the client id", map[string]string{"AIO_MQTT_CLIENT_ID": "node-a", "suffix": "-lease"}, "mqtts://broker:8883",
			func(o *Options) { o.ClientID = "node-a-lease" }},
		{"a suffix without a client id, which is then random", map[string]string{"suffix": "-lease"}, "mqtts://broker:8883", func(*Options) {}},
		{"a service account", map[string]string{"AIO_SAT_FILE": file}, "mqtts://broker:8883", func(o *Options) { o.TokenFile = file }},
	} {
		t.Run(test.name, func(t *testing.T) {
			variables := map[string]string{"AIO_BROKER_HOSTNAME": "broker"}
			maps.Copy(variables, test.variables)
			environmentOf(t, variables)
			address, got, err := FromEnv(variables["suffix"])
			want := Options{KeepAlive: time.Minute}
			test.want(&want)
			if err != nil || address != test.address {
				t.Errorf("%q, %v; want %q", address, err, test.address)
			}
			if got.ClientID != want.ClientID || got.KeepAlive != want.KeepAlive || got.Username != want.Username ||
				got.PasswordFile != want.PasswordFile || got.TokenFile != want.TokenFile || got.TLS != want.TLS {
				t.Errorf("%+v\nwant %+v", got, want)
			}
			if _, err := mqtt.ParseAddresses(address); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnErrorInTheEnvironmentNamesTheVariableAndTheRemedy(t *testing.T) {
	const file = "/no/such/file" // Dial reads it
	for _, test := range []struct {
		name      string
		variables map[string]string
		want      []string // each in a line of its own
	}{
		{"no host", map[string]string{"AIO_BROKER_HOSTNAME": ""}, []string{"AIO_BROKER_HOSTNAME is not set"}},
		{"a host that is an address", map[string]string{"AIO_BROKER_HOSTNAME": "mqtts://broker"}, []string{`AIO_BROKER_HOSTNAME is "mqtts://broker"; give a host name`}},
		{"several hosts", map[string]string{"AIO_BROKER_HOSTNAME": "a,b"}, []string{`AIO_BROKER_HOSTNAME is "a,b"; give a host name`}},
		{"a port that is a word", map[string]string{"AIO_BROKER_TCP_PORT": "mqtt"}, []string{`AIO_BROKER_TCP_PORT is "mqtt"; give a whole number from 1 to 65535`}},
		{"port 0", map[string]string{"AIO_BROKER_TCP_PORT": "0"}, []string{`AIO_BROKER_TCP_PORT is "0"`}},
		{"a port too high", map[string]string{"AIO_BROKER_TCP_PORT": "65536"}, []string{`AIO_BROKER_TCP_PORT is "65536"`}},
		{"neither true nor false", map[string]string{"AIO_MQTT_USE_TLS": "maybe"}, []string{`AIO_MQTT_USE_TLS is "maybe"; give true or false`}},
		{"no keep-alive", map[string]string{"AIO_MQTT_KEEP_ALIVE": "0"}, []string{`AIO_MQTT_KEEP_ALIVE is "0"; give a whole number`}},
		{"a keep-alive with a unit", map[string]string{"AIO_MQTT_KEEP_ALIVE": "60s"}, []string{`AIO_MQTT_KEEP_ALIVE is "60s"; give a whole number`}},
		{"the password of a key", map[string]string{"AIO_TLS_KEY_PASSWORD_FILE": file}, []string{"AIO_TLS_KEY_PASSWORD_FILE is set, and only a plain key can be read: write one with \"openssl pkey"}},
		{"two at once", map[string]string{"AIO_BROKER_HOSTNAME": "", "AIO_MQTT_USE_TLS": "maybe"}, []string{"AIO_BROKER_HOSTNAME is not set", "AIO_MQTT_USE_TLS is"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			variables := map[string]string{"AIO_BROKER_HOSTNAME": "broker"}
			maps.Copy(variables, test.variables)
			environmentOf(t, variables)
			address, options, err := FromEnv("")
			if err == nil || address != "" || options.KeepAlive != 0 {
				t.Fatalf("%q, %v", address, err)
			}
			lines := strings.Split(strings.TrimPrefix(err.Error(), "transport: environment: "), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("%q, want %q", lines, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("line %d is %q, want %q", i, lines[i], want)
				}
			}
		})
	}
}
