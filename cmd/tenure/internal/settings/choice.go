package settings

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// choice is a flag that has one of several values.
type choice struct {
	value *string
	of    []string
}

var _ pflag.Value = (*choice)(nil)

// Choice adds a flag that has one of several values. The default is what at points to, which may be empty.
// The help has the values.
func Choice(flags *pflag.FlagSet, at *string, name string, of []string, usage string) {
	flags.Var(&choice{at, of}, name, usage+": "+list(of))
}

// Set takes one of the values.
func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return errors.New("choose " + list(c.of))
	}
	*c.value = text
	return nil
}

// String returns the value.
func (c *choice) String() string {
	if c.value == nil { // pflag asks a zero value for the default of the type
		return ""
	}
	return *c.value
}

// Type is the kind of value in --help.
func (c *choice) Type() string { return "name" }

// list returns values as a sentence has them, such as "a, b or c".
func list(of []string) string {
	last := len(of) - 1
	return strings.Join(of[:last], ", ") + " or " + of[last]
}
