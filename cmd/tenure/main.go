// Command tenure runs programs under a lease: on one machine at a time (run), or once (lock). It
// runs a state store, too: as part of an MQTT 5 broker of its own (serve), or as a client of a
// broker that runs already (attach). The other commands read and write keys, show leases and their
// holders, find faults, and back up the data of a store.
//
// "tenure help" lists them, and "tenure help exit-codes" says what their exit codes mean.
// docs/command.md has an example for each.
package main

import "github.com/tenurelock/tenure/cmd/tenure/command"

func main() { command.Program{Name: "tenure"}.Main() }
