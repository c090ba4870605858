package operr_test

import (
	"errors"
	"io"
	"testing"

	"github.com/tenurelock/tenure/internal/operr"
)

func TestTheNameStandsOnce(t *testing.T) {
	if operr.New("transport: GET", "press-7", nil) != nil {
		t.Error("no error became an error")
	}
	get := operr.New("transport: GET", "press-7", io.EOF)
	if got, want := get.Error(), `transport: GET "press-7": EOF`; got != want || !errors.Is(get, io.EOF) {
		t.Errorf("%s, want %s, which matches io.EOF", got, want)
	}
	acquire := operr.New("lease: acquire", "press-7", operr.Inner(get))
	if got, want := acquire.Error(), `lease: acquire "press-7": EOF`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := operr.Inner(io.EOF); got != io.EOF {
		t.Errorf("Inner of another error: %v", got)
	}
}
