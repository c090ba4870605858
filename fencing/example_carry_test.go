package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

// A machine behind HTTP: writers send their token in a header, and the one process
// that talks to the machine checks it.
func ExampleSetHeader() {
	checker, err := fencing.NewChecker("press-7", hlc.Token{}, nil) // a FileStore: see the example of Checker
	if err != nil {
		log.Fatal(err)
	}
	machine := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := fencing.TokenFromHeader(r.Header)
		switch {
		case errors.Is(err, fencing.ErrMissingToken):
			http.Error(w, err.Error(), http.StatusPreconditionRequired)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		err = checker.Do(r.Context(), token, func() error { return nil /* move the machine */ })
		switch {
		case errors.Is(err, fencing.ErrStaleToken):
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})

	// The writer. After 412 it ends its tenure: tenure.FencedOut(err).
	send := func(token hlc.Token) {
		request := httptest.NewRequest(http.MethodPut, "/setpoint", nil)
		if !token.IsZero() {
			if err := fencing.SetHeader(request.Header, token); err != nil {
				log.Fatal(err)
			}
		}
		response := httptest.NewRecorder()
		machine.ServeHTTP(response, request)
		fmt.Printf("%q: %d\n", request.Header.Get(fencing.HeaderName), response.Code)
	}
	send(hlc.Token{Wall: 1696374425000, Node: "StateStore"})
	send(hlc.Token{Wall: 1696374427000, Node: "StateStore"})
	send(hlc.Token{Wall: 1696374425000, Node: "StateStore"})
	send(hlc.Token{}) // no token
	// Output:
	// "1696374425000:0:StateStore": 200
	// "1696374427000:0:StateStore": 200
	// "1696374425000:0:StateStore": 412
	// "": 428
}

// A machine behind MQTT: the message that commands it carries the token.
func ExampleUserProperty() {
	command := &paho.Publish{
		QoS:        1,
		Topic:      "press-7/commands",
		Payload:    []byte("42"),
		Properties: &paho.PublishProperties{},
	}
	token := hlc.Token{Wall: 1696374425000, Node: "StateStore"} // lease.Tenure.Token returns it
	name, value, err := fencing.UserProperty(token)
	if err != nil {
		log.Fatal(err)
	}
	command.Properties.User.Add(name, value)

	// The receiver asks a checker.
	received, err := fencing.TokenFromUserProperties(command.Properties.User.GetAll(fencing.UserPropertyName))
	if err != nil {
		log.Fatal(err)
	}
	checker, err := fencing.NewChecker("press-7", hlc.Token{Wall: 1696374427000, Node: "StateStore"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(checker.Admit(context.Background(), received))
	// Output:
	// fencing: admit to "press-7": not admitted: the token 1696374425000:0:StateStore is stale: 1696374427000:0:StateStore was seen
}
