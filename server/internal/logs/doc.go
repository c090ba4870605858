// Package logs keeps a log small and harmless, whatever clients do.
//
// A client chooses the names that a log repeats, how often a warning is repeated, and
// sometimes, through what it makes the server log, how long a log waits for its reader.
// Each of the three has a bound here:
//
//   - [Name] is a name that a client chose, and [Text] a reason that may contain one. They
//     are cut, and what is not printable is escaped.
//   - A [Limiter] writes one kind of warning at a bounded rate, and counts the rest.
//   - A [Writer] stands between a log and a file or pipe. Writing to it never waits.
//
// What it does not do: it does not order lines of different Limiters, and a line that a
// Writer drops is lost but for being counted.
package logs
