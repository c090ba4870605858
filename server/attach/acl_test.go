package attach_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// startGuardedMosquitto runs a broker with the rules of deploy/mosquitto/tenure.acl, changed.
func startGuardedMosquitto(t *testing.T, change func(rules string) string, more ...string) *mosquitto.Broker {
	t.Helper()
	rules, err := os.ReadFile("../../deploy/mosquitto/tenure.acl")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	acl, passwords := filepath.Join(dir, "acl"), filepath.Join(dir, "passwords")
	if err := os.WriteFile(acl, []byte(change(string(rules))), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(passwords, []byte("store:secret\npress:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(prerequisite.Program(t, "mosquitto_passwd", "mosquitto"), "-U", passwords).CombinedOutput(); err != nil {
		t.Fatalf("mosquitto_passwd: %v: %s", err, out)
	}
	return mosquitto.Start(t, fmt.Sprintf("acl_file %s\npassword_file %s\n%s", acl, passwords, strings.Join(more, "")))
}

func unchanged(rules string) string { return rules }

// The rules of the broker, with the one for applications of docs/attach.md.
func TestTheRulesOfTheDocumentLetClientsUseTheStoreAndNoMore(t *testing.T) {
	document, err := os.ReadFile("../../docs/attach.md")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`(user press)\n +(topic write .*)\n`).FindSubmatch(document)
	if rule == nil {
		t.Fatal("docs/attach.md has no rule for applications")
	}
	broker := startGuardedMosquitto(t, func(rules string) string {
		return fmt.Sprintf("%s\n%s\n%s\n", rules, rule[1], rule[2])
	})
	a := testsupport.Attach(t, broker.Address, attach.Options{Username: "store", Password: []byte("secret")})
	client := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "node-a"})
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	mustSet(t, client, "k", "v")
	testsupport.Eventually(t, "the client is notified", func() bool { return string((await.Receive(watch.Changes())).Value) == "v" })
	if got := a.Stats().DroppedWatches; got != 0 {
		t.Errorf("%d watches were dropped", got)
	}

	other := testsupport.Connect(t, broker.Address, "node-b", nil)
	press := testsupport.Connect(t, broker.Address, "press-1", testsupport.As("press"))
	forbidden := map[*testsupport.PahoClient][]string{
		press: testsupport.RecommendedResponseTopics("node-a"),
		other: {
			"clients/node-a/services/statestore/_any_/command/invoke/response",
			fmt.Sprintf("%s/%X/command/notify/%X", testsupport.ReservedPrefix, "node-a", "k"),
			presenceTopic,
			"factory/valve",
		},
	}
	for p, topics := range forbidden {
		for _, topic := range topics {
			ack, err := p.Publish(&paho.Publish{QoS: 1, Topic: topic, Payload: []byte("forged")})
			if err == nil || ack == nil || ack.ReasonCode != 0x87 {
				t.Errorf("%s publishes to %s: %v", p.ID, topic, err)
			}
		}
	}
	// In another's name it is not answered.
	request := other.Request("GET", "k")
	request.Properties.ResponseTopic = "clients/node-a/other"
	other.Subscribe("clients/node-a/other") // mosquitto judges each delivery instead
	other.SendMessage(request)
	other.MustGet("k", "v") // the next message is this reply
	// An application answers another.
	other.Subscribe("clients/node-b/services/press/increment")
	press.SendMessage(&paho.Publish{Topic: "clients/node-b/services/press/increment", Payload: []byte("42")})
	if got := other.Next(); string(got.Payload) != "42" {
		t.Errorf("the answer is %v", got)
	}
}

func TestAStoreThatTheBrokerRefusesSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	without := func(rule string) func(string) string {
		return func(rules string) string {
			if !strings.Contains(rules, rule) {
				t.Fatalf("the document has no rule %q", rule)
			}
			return strings.Replace(rules, rule, "", 1)
		}
	}
	const secret, all = "secret", "topic readwrite statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/#\n"
	for _, test := range []struct {
		name           string
		change         func(string) string
		user, password string
		want           string
	}{
		{"another password", unchanged, "store", "other", "check the username, the password and the broker's rules"},
		{"no user", unchanged, "", "", presenceTopic + " (MQTT reason code 0x87): its rules must let a store write there"},
		{"a store that may not write to clients", without("topic write clients/#\n"), "store", secret,
			"refuses a message to clients/"},
		{"a store that may read nothing of the store's", func(rules string) string {
			return strings.Replace(without(all)(rules), "user store\n", "user store\ntopic write "+presenceTopic+"\n", 1)
		}, "store", secret, "its rules must let a store read and write that topic"},
	} {
		t.Run(test.name, func(t *testing.T) {
			broker := startGuardedMosquitto(t, test.change)
			store, err := attach.New("mqtt://"+broker.Address, attach.Options{Username: test.user, Password: []byte(test.password)})
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
