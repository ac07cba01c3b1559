package sample

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a flag value for a size: 4096, 64Ki, 256Mi, 4Gi, 1Ti.
type Bytes uint64

var units = []struct {
	suffix string
	shift  uint
}{{"Ti", 40}, {"Gi", 30}, {"Mi", 20}, {"Ki", 10}, {"", 0}}

// String formats the size in the largest unit that divides it.
func (b *Bytes) String() string {
	for _, u := range units {
		if *b != 0 && *b%(1<<u.shift) == 0 {
			return strconv.FormatUint(uint64(*b)>>u.shift, 10) + u.suffix
		}
	}
	return "0"
}

// Set parses a size.
func (b *Bytes) Set(s string) error {
	for _, u := range units {
		digits, found := strings.CutSuffix(s, u.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxUint64>>u.shift {
			break
		}
		*b = Bytes(n << u.shift)
		return nil
	}
	return fmt.Errorf("%q is not a size: it must be a whole number of bytes, Ki, Mi, Gi or Ti, such as 256Mi", s)
}

// Type returns the name of the value in --help.
func (b *Bytes) Type() string { return "bytes" }
