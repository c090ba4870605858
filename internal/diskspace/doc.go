// Package diskspace says how much space a disk has.
package diskspace
