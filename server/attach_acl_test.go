package server_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// startGuardedMosquitto runs a broker with the rules that docs/attach.md has.
func startGuardedMosquitto(t *testing.T) *mosquitto.Broker {
	t.Helper()
	document, err := os.ReadFile("../docs/attach.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile("(?s)```\n(# The store\\..*?)```").FindSubmatch(document)
	if rules == nil {
		t.Fatal("docs/attach.md has no rules for the broker")
	}
	dir := t.TempDir()
	acl, passwords := filepath.Join(dir, "acl"), filepath.Join(dir, "passwords")
	if err := os.WriteFile(acl, rules[1], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(passwords, []byte("store:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mosquitto_passwd", "-U", passwords).CombinedOutput(); err != nil {
		mosquitto.Lacking(t, fmt.Sprintf("mosquitto_passwd: %v: %s", err, out))
	}
	return mosquitto.Start(t, fmt.Sprintf("acl_file %s\npassword_file %s\n", acl, passwords))
}

func TestTheRulesOfTheDocumentLetClientsUseTheStoreAndNoMore(t *testing.T) {
	broker := startGuardedMosquitto(t)
	a := attach(t, broker.Address, server.AttachOptions{User: "store", Password: []byte("secret")})
	client := dial(t, broker.Address, transport.Options{ClientID: "node-a"})
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client is notified", func() bool { return string((<-watch.Changes()).Value) == "v" })
	if got := a.Stats().DroppedWatches; got != 0 {
		t.Errorf("%d watches were dropped", got)
	}

	other := connect(t, broker.Address, "node-b", nil)
	for _, topic := range []string{
		"clients/node-a/services/statestore/_any_/command/invoke/response",
		fmt.Sprintf("%s/%X/command/notify/%X", reservedPrefix, "node-a", "k"),
		strings.TrimSuffix(invokeTopic, "command/invoke") + "store/presence",
		"factory/valve",
	} {
		ack, err := other.publish(&paho.Publish{QoS: 1, Topic: topic, Payload: []byte("forged")})
		if err == nil || ack == nil || ack.ReasonCode != 0x87 {
			t.Errorf("a client publishes to %s: %v", topic, err)
		}
	}
	// In another's name it is not answered.
	request := other.request("GET", "k")
	request.Properties.ResponseTopic = "clients/node-a/other"
	other.subscribe("clients/node-a/other") // mosquitto judges each delivery instead
	if _, err := other.publish(request); err != nil {
		t.Error(err)
	}
	other.mustGet("k", "v") // the next message is this reply
}

func TestAStoreThatTheBrokerRefusesSaysWhatItNeeds(t *testing.T) {
	broker := startGuardedMosquitto(t)
	for _, test := range []struct {
		name    string
		options server.AttachOptions
		want    string
	}{
		{"another password", server.AttachOptions{User: "store", Password: []byte("other")}, "the broker refuses the connection (MQTT reason code 0x"},
		{"no user", server.AttachOptions{}, "must let a store write there"},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, err := server.Attach("mqtt://"+broker.Address, test.options)
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Serve: %v; want %q", err, test.want)
			}
			if err := store.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), "already served") {
				t.Errorf("Serve again: %v", err)
			}
		})
	}
}
