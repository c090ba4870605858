// Package release has the tests of what a release consists of: the script cut, which tags all modules,
// and the files below deploy, as users install them.
package release
