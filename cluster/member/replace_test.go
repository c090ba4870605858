package member

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A mistaken name or URL must not add a member, or take one out.
func TestReplaceFindsTheMemberThatIsLost(t *testing.T) {
	named := func(name string) *etcdserverpb.Member {
		return &etcdserverpb.Member{Name: name, PeerURLs: []string{"https://" + name + ":2380"}}
	}
	announced := &etcdserverpb.Member{PeerURLs: []string{"https://mistaken:2380"}}
	a, b, c := named("a"), named("b"), named("c")
	for _, test := range []struct {
		why       string
		members   []*etcdserverpb.Member
		name, url string
		old       *etcdserverpb.Member
		says      string
	}{
		{"it is lost", []*etcdserverpb.Member{a, b, c}, "a", "https://a:2380", a, ""},
		{"the new one has another address", []*etcdserverpb.Member{a, b, c}, "a", "https://new:2380", a, ""},
		{"it was taken out before", []*etcdserverpb.Member{b, c}, "a", "https://a:2380", nil, ""},
		{"it was announced before", []*etcdserverpb.Member{announced, b, c}, "a", "https://mistaken:2380", announced, ""},
		{"it was announced with a mistake", []*etcdserverpb.Member{announced, b, c}, "a", "https://a:2380", announced, ""},
		{"no member has the name", []*etcdserverpb.Member{a, b, c}, "z", "https://z:2380", nil, `the members are "a", "b", "c"`},
		{"another one has the URL", []*etcdserverpb.Member{a, b, c}, "a", "https://b:2380", nil, `member "b" has https://b:2380`},
	} {
		t.Run(test.why, func(t *testing.T) {
			old, err := lost(test.members, test.name, test.url)
			if (err != nil) != (test.says != "") || err != nil && (!errors.Is(err, errMistaken) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("lost has error %v, want one that says %q", err, test.says)
			}
			if (len(old) == 1) != (test.old != nil) || len(old) == 1 && old[0] != test.old {
				t.Errorf("lost returned %v, want %v", old, test.old)
			}
		})
	}
}
