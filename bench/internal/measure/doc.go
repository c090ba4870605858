// Package measure measures peers against each other in one run. Times on a shared machine differ
// from minute to minute by more than the peers do, so the peers take turns of a fraction of a second,
// and the figures are medians over rounds of turns.
package measure
