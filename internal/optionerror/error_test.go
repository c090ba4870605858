package optionerror

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"
)

func TestTheTextNamesTheFieldOrTheFlag(t *testing.T) {
	for _, test := range []struct {
		err         Error
		field, flag string
	}{
		{Error{Field: "TTL", Value: time.Second, Problem: "is short"}, "Options.TTL 1s is short", "--ttl 1s is short"},
		{Error{Field: "ClientID", Value: "a/b", Problem: "has a /"}, `Options.ClientID "a/b" has a /`, `--client-id "a/b" has a /`},
		{Error{Field: "TLS", Problem: "is set"}, "Options.TLS is set", "--tls is set"},
		{Error{Field: "TLS.CAFile", Err: fs.ErrNotExist}, "Options.TLS.CAFile: file does not exist", "--tls-ca: file does not exist"},
	} {
		flag := strings.TrimSuffix(strings.Fields(test.flag)[0], ":")
		if test.err.Error() != test.field || test.err.Text(flag) != test.flag {
			t.Errorf("%q, %q", test.err.Error(), test.err.Text(flag))
		}
	}
	if !errors.Is(&Error{Err: fs.ErrNotExist}, fs.ErrNotExist) {
		t.Error("the cause is lost")
	}
}
