//go:build !unix

package main

import "errors"

// withFewFiles fails: the system has no such limit.
func withFewFiles(int, string, []string) (string, []string, error) {
	return "", nil, errors.ErrUnsupported
}
