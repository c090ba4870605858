package pubsub

import "testing"

// The function is the embedding program's; the server goes on when it panics.
func TestAMayReadThatPanicsLeavesTheSessionUsable(t *testing.T) {
	b := New(Limits{})
	s := b.Session("p")
	if _, err := s.Subscribe(Subscription{Filter: "a", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	s.Attach(Receiver{Link: new(linkOfTest), MQTT5: true})
	s.Detach(s.link)
	if _, err := b.Publish(&Message{Topic: "a", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	link := new(linkOfTest)
	s.Attach(Receiver{Link: link, MQTT5: true, MayRead: func(string) bool { panic("the program's fault") }})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _, _ = s.Append(link, nil, 1)
	}()
	link = new(linkOfTest)
	s.Attach(Receiver{Link: link, MQTT5: true})
	if _, sent, _ := s.Append(link, nil, 1); sent != 1 {
		t.Errorf("%d messages were sent, want 1", sent)
	}
}

type linkOfTest struct{ _ byte } // not of size 0: links are compared by address

func (*linkOfTest) Wake()            {}
func (*linkOfTest) Reserve(int) bool { return true }
func (*linkOfTest) Release(int)      {}
