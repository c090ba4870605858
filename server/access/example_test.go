package access_test

import (
	"fmt"
	"log"

	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

func Example() {
	rules, err := access.Parse([]byte(`
users:
  - name: gateway-a
    password: $2a$04$zK0Fn7VZxzgQcXtO8vlANuDqj15Dqsb5wzdlSlgS8JEClFYkYiayW
    clients: ["gateway-a-*"]
rules:
  - users: ["gateway-*"]
    read:  ["press-7/*"]
`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rules.Authenticate(access.Credentials{
		Client: "gateway-a-1", User: "gateway-a", Password: []byte("let me in"),
	}))
	fmt.Println(rules.Authenticate(access.Credentials{
		Client: "gateway-a-1", User: "gateway-a", Password: []byte("let me out"),
	}))
	identity := access.Identity{Client: "gateway-a-1", User: "gateway-a"}
	fmt.Println(rules.Authorize(identity, statestore.VerbGet, "press-7/active"))
	fmt.Println(rules.Authorize(identity, statestore.VerbSet, "press-7/active"))
	// Output:
	// <nil>
	// access: client "gateway-a-1", user "gateway-a": wrong password
	// true
	// false
}

func ExampleOpen() {
	_, err := access.Open("testdata/typo.yaml")
	fmt.Println(err)
	// Output:
	// access: testdata/typo.yaml: line 3: field pasword is unknown; there are name, password, clients
}
