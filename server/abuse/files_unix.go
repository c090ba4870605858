//go:build unix

package main

import "strconv"

// withFewFiles returns a command that runs a program with a limit of file descriptors.
func withFewFiles(files int, program string, arguments []string) (string, []string, error) {
	script := "ulimit -n " + strconv.Itoa(files) + ` && exec "$0" "$@"`
	return "/bin/sh", append([]string{"-c", script, program}, arguments...), nil
}
