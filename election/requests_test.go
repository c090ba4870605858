package election

import (
	"testing"

	"github.com/tenurelock/tenure/transport"
)

func TestWhichRequestsMakeALeaderHandOver(t *testing.T) {
	const tenure = "leader:00112233445566778899aabbccddeeff"
	for _, test := range []struct {
		rank  int
		value string
		want  action
	}{
		{1, "other:state=rank&rank=0", yield},
		{2, "gateway:left:state=rank&rank=1", yield}, // a colon is allowed
		{1, "other:state=rank&rank=1", ignore},
		{0, "other:state=rank&rank=0", ignore},
		{1, "other:state=rank&rank=-1", ignore},
		{1, "other", ignore},
		{1, "state=rank&rank=0", ignore},
		{1, "other:", ignore},
		{1, "other:state=rank&rank=0x0", ignore},
		{1, "other:state=rank&rank=99999999999999999999", ignore},
		{1, "other:rank=0", ignore},
		{1, "other:state=rank&rank=0;", ignore},
		{0, request{"other", ready, 0, tenure, "other"}.String(), handOver},
		{0, request{"other", asked, 0, tenure, "other"}.String(), ignore},
		{0, request{"other", ready, 0, "leader:former", "other"}.String(), ignore},
	} {
		s := stance{options: &Options{Rank: test.rank}, tenure: tenure, holds: true, yields: true}
		if got := s.decide(parseRequest(transport.Entry{Exists: true, Value: []byte(test.value)}), confirmed); got != test.want {
			t.Errorf("at rank %d %q makes it do %d, want %d", test.rank, test.value, got, test.want)
		}
	}
}
