package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
)

// taskVariable is the environment variable with the task of a child process, as JSON.
const taskVariable = "TENURE_ABUSE_TASK"

// A task is what a child process does.
type task struct {
	Healthy   bool   // run the healthy client; else, without Folder, the attacker
	Folder    string // run a server, with its data there
	Commit    time.Duration
	Attack    string // its name
	Address   string // of the server, host:port
	Users     bool   // the server checks passwords
	Encrypted bool   // the server has TLS
	Changes   bool   // the healthy client also measures changes
	Short     bool
	// Duration is how long the attack goes on, and Limit when it is cut off.
	Duration, Limit time.Duration
}

// An outcome is what the attacker reports.
type outcome struct {
	Breach string // which limit it passed
	Error  string // why the attack could not run
}

// runTask runs the task in the environment, if there is one. The code is for os.Exit.
func runTask() (done bool, code int) {
	text, ok := os.LookupEnv(taskVariable)
	if !ok {
		return false, 0
	}
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		fmt.Fprintf(os.Stderr, "abuse: %s: %v\n", taskVariable, err)
		return true, 2
	}
	if t.Folder != "" {
		if err := beServer(t); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			return true, 1
		}
		return true, 0
	}
	if t.Healthy {
		if err := beHealthy(t); err != nil {
			fmt.Fprintln(os.Stderr, "healthy client:", err)
			return true, 1
		}
		return true, 0
	}
	runtime.GOMAXPROCS(1) // see the comment of the command
	var o outcome
	if err := beAttacker(t); errors.Is(err, errBreach) {
		o.Breach = err.Error()
	} else if err != nil {
		o.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return true, 1
	}
	return true, 0
}

func beAttacker(t task) error {
	for _, a := range attacks() {
		if a.name == t.Attack {
			ctx, cancel := context.WithTimeout(context.Background(), t.Limit)
			defer cancel()
			return a.run(ctx, &target{address: t.Address, users: t.Users, short: t.Short, duration: t.Duration})
		}
	}
	return fmt.Errorf("there is no attack %q", t.Attack)
}
