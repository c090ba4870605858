// Command tenure runs a state store: as part of an MQTT 5 broker of its own (serve), or as a
// client of a broker that runs already (attach). It also hashes passwords for the users of
// the broker (password), and checks, backs up, restores and exports the data of a store (check,
// backup, restore, export).
//
// SIGINT and SIGTERM stop it. Standard output says where the store answers, standard error
// is the log. The exit status is 1 after an error.
package main

import "github.com/tenurelock/tenure/cmd/tenure/command"

func main() { command.Main(command.New("tenure", nil, nil)) }
