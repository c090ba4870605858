// Package logs keeps a log small and harmless, whatever clients do.
//
// A client chooses the names that a log repeats and how often a warning is repeated. Both
// have a bound here:
//
//   - [Name] is a name that a client chose, and [Text] a reason that may contain one. They
//     are cut, and what is not printable is escaped.
//   - A [Limiter] writes one kind of warning at a bounded rate, and counts the rest.
//
// It does not order the lines of different Limiters.
package logs
