// Package logs bounds what clients can make a server write to its log: [Name] is a name that a client
// chose, and [Text] a reason that may contain one. They are cut, and bytes that are not printable are
// escaped. Package loglimit bounds how often a line is repeated.
package logs
