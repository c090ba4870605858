package operror_test

import (
	"errors"
	"io"
	"testing"

	"github.com/tenurelock/tenure/internal/operror"
)

func TestTheNameStandsOnce(t *testing.T) {
	if operror.New("transport: GET", "press-7", nil) != nil {
		t.Error("no error became an error")
	}
	get := operror.New("transport: GET", "press-7", io.EOF)
	if got, want := get.Error(), `transport: GET "press-7": EOF`; got != want || !errors.Is(get, io.EOF) {
		t.Errorf("%s, want %s, which matches io.EOF", got, want)
	}
	acquire := operror.New("lease: acquire", "press-7", operror.Inner(get))
	if got, want := acquire.Error(), `lease: acquire "press-7": EOF`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := operror.Inner(io.EOF); got != io.EOF {
		t.Errorf("Inner of another error: %v", got)
	}
}
