// Package logs bounds what clients can make a server write to its log.
//
// Clients choose names that a log contains, and how often a warning is repeated. This package
// bounds both:
//
//   - [Name] is a name that a client chose, and [Text] a reason that may contain one. They
//     are cut, and bytes that are not printable are escaped.
//   - A [Limiter] writes one kind of warning at a bounded rate, and counts the rest.
//
// It does not order the lines of different Limiters.
package logs
