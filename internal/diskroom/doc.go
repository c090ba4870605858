// Package diskroom says how much room a disk has.
package diskroom
