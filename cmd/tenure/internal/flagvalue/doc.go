// Package flagvalue has flags of kinds that package pflag does not have: a number of bytes with a unit,
// and one of several values. Their errors say what to choose.
package flagvalue
