package billing

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrAmount marks an amount of money that can't be read.
var ErrAmount = errors.New("billing: invalid amount")

// nanoDecimals is how many decimals of a USD a nano-USD is.
const nanoDecimals = 9

// ParseNano reads a decimal string of USD, such as "12.50", as nano-USD. It
// takes an optional minus, digits, and at most nine decimals. The error is
// ErrAmount.
func ParseNano(s string) (nano int64, err error) {
	digits, negative := strings.CutPrefix(s, "-")
	whole, frac, point := strings.Cut(digits, ".")
	if whole == "" || point && frac == "" || len(frac) > nanoDecimals || strings.Trim(whole+frac, "0123456789") != "" {
		return 0, fmt.Errorf("%w: %q is not a decimal of at most %d places, such as \"12.50\"", ErrAmount, s, nanoDecimals)
	}
	nano, err = strconv.ParseInt(whole+frac+strings.Repeat("0", nanoDecimals-len(frac)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q: %w", ErrAmount, s, err)
	}
	if negative {
		nano = -nano
	}
	return nano, nil
}

// FormatMoney writes nano-USD as USD, with at least two decimals and no more
// than it needs. ParseNano reads it back.
func FormatMoney(nano int64) string {
	sign := ""
	if nano < 0 {
		sign = "-"
	}
	s := fmt.Sprintf("%010d", magnitude(nano))
	cut := len(s) - nanoDecimals
	return sign + s[:cut] + "." + s[cut:cut+2] + strings.TrimRight(s[cut+2:], "0")
}

// magnitude is the number without its sign; the least of all has one too.
func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n) //nolint:gosec // wraps to the magnitude
	}
	return uint64(n)
}
