package settings

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// A byteSize is a flag for a number of bytes, such as 536870912 or 512MiB.
type byteSize int64

var _ pflag.Value = (*byteSize)(nil)

// Bytes adds a flag for a number of bytes, alone or with a unit, such as 512MiB. The default is what at
// points to.
func Bytes(flags *pflag.FlagSet, at *int64, name, usage string) {
	flags.Var((*byteSize)(at), name, usage)
}

var byteUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

var errByteSize = errors.New("want a number of bytes, like 536870912, 512MiB or 2GiB")

// Set parses a number, alone or with one of the units B, KiB, MiB, GiB and TiB.
func (b *byteSize) Set(text string) error {
	for _, unit := range byteUnits {
		digits, ok := strings.CutSuffix(text, unit.name)
		if !ok {
			continue
		}
		digits = strings.TrimSpace(digits)
		whole, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || whole > math.MaxInt64/uint64(unit.bytes) {
			break
		}
		*b = byteSize(whole) * byteSize(unit.bytes)
		return nil
	}
	return errByteSize
}

// String returns the number in the largest unit that divides it.
func (b *byteSize) String() string {
	for _, unit := range byteUnits {
		if *b != 0 && int64(*b)%unit.bytes == 0 && unit.bytes > 1 {
			return fmt.Sprintf("%d%s", int64(*b)/unit.bytes, unit.name)
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type is the kind of value in --help.
func (b *byteSize) Type() string { return "bytes" }

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
