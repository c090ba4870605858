package protocol

import (
	"strings"
	"testing"
)

const (
	service  = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
	reserved = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
)

// docs/protocol.md §1.2 and §5.1, spelled out.
func TestTopics(t *testing.T) {
	tests := []struct {
		name string
		got  string
		want string
	}{
		{"the topic of requests", InvokeTopic, service + "/command/invoke"},
		{"the reserved prefix", ReservedPrefix, reserved},
		{"the topic of replies", ResponseTopic("press-7"), "clients/press-7/services/statestore/_any_/command/invoke/response"},
		{"the topic of notifications", NotifyTopic("client-id1", "SOMEKEY"), reserved + "/636C69656E742D696431/command/notify/534F4D454B4559"},
		{"the topic of a key with bytes that a topic may not hold", NotifyTopic("a/+", "#\x00\xff"), reserved + "/612F2B/command/notify/2300FF"},
		{"a topic that is appended", string(AppendNotifyTopic([]byte("before "), "c", "k")), "before " + reserved + "/63/command/notify/6B"},
		{"the filter of all notifications", NotifyFilter("client-id1"), reserved + "/636C69656E742D696431/command/notify/+"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.got != test.want {
				t.Errorf("got  %q\nwant %q", test.got, test.want)
			}
		})
	}
}

func TestParseNotifyTopicReadsWhatNotifyTopicWrites(t *testing.T) {
	for _, client := range []string{"client-id1", "c", "/", "\x00", "größe", "\xff", strings.Repeat("c", 1000)} {
		for _, key := range []string{"SOMEKEY", "k", "+", "#", "/command/notify/", "\x00\r\n", "\xff\xfe", strings.Repeat("k", 1<<16)} {
			gotClient, gotKey, ok := ParseNotifyTopic(NotifyTopic(client, key))
			if !ok || gotClient != client || gotKey != key {
				t.Errorf("%.20q, %.20q became %.20q, %.20q, %t", client, key, gotClient, gotKey, ok)
			}
		}
	}
}

func TestParseNotifyTopicRefuses(t *testing.T) {
	for _, topic := range []string{
		"", InvokeTopic, ResponseTopic("c"), NotifyFilter("c"), reserved, reserved + "/",
		"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE9/63/command/notify/6B", strings.ToLower(reserved) + "/63/command/notify/6B",
		"x/" + reserved + "/63/command/notify/6B", "/" + reserved + "/63/command/notify/6B",
		reserved + "/command/notify/6B", reserved + "//command/notify/6B", reserved + "/6/command/notify/6B", reserved + "/633/command/notify/6B",
		reserved + "/client/command/notify/6B", reserved + "/6b/command/notify/6B", reserved + "/63/63/command/notify/6B",
		reserved + "/63/command/invoke/6B", reserved + "/63/notify/6B", reserved + "/63/command/notify", reserved + "/63/command/notify/",
		reserved + "/63/command/notify/6", reserved + "/63/command/notify/6b", reserved + "/63/command/notify/KEY", reserved + "/63/command/notify/6B 6B",
		reserved + "/63/command/notify/6B/6B", reserved + "/63/command/notify/6B/", reserved + "/63/command/notify/\uff16\uff22",
	} {
		if client, key, ok := ParseNotifyTopic(topic); ok {
			t.Errorf("%q was read as client %q, key %q", topic, client, key)
		}
	}
}

// Each topic has one client and key, and each client and key one topic.
func FuzzParseNotifyTopic(f *testing.F) {
	f.Add(NotifyTopic("client-id1", "SOMEKEY"))
	f.Add(NotifyFilter("client-id1"))
	f.Add(reserved + "/636c/command/notify/6b")
	f.Add(reserved + "/63/command/notify/6")
	f.Add(reserved + "//command/notify/")
	f.Add(InvokeTopic)
	f.Fuzz(func(t *testing.T, topic string) {
		client, key, ok := ParseNotifyTopic(topic)
		if !ok {
			return
		}
		if client == "" || key == "" {
			t.Errorf("%q was read as client %q, key %q", topic, client, key)
		}
		if again := NotifyTopic(client, key); again != topic {
			t.Errorf("%q was read as client %q, key %q, whose topic is %q", topic, client, key, again)
		}
	})
}
