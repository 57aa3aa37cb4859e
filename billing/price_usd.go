package billing

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	usdDecimals  = 6 // of USD per million tokens that are exact
	tierDecimals = 4 // of a multiplier
)

// ParseUSD reads a decimal string of USD per million tokens, such as "0.10",
// as pico-USD per token. It takes digits with at most six decimals: no sign,
// no exponent, no spaces. The error is ErrPrice.
func ParseUSD(s string) (pico int64, err error) { return parseDecimal(s, usdDecimals) }

// FormatUSD writes pico-USD per token as USD per million tokens, with at least
// two decimals. ParseUSD reads it back.
func FormatUSD(pico int64) string { return formatDecimal(pico, usdDecimals, 2) }

// parseDecimal reads a decimal as a whole number of its last decimal place.
func parseDecimal(s string, places int) (int64, error) {
	whole, frac, point := strings.Cut(s, ".")
	bad := whole == "" || point && frac == "" || len(frac) > places || len(whole) > 10
	digits := whole + frac + strings.Repeat("0", places-min(len(frac), places))
	for i := range len(digits) {
		bad = bad || digits[i] < '0' || digits[i] > '9'
	}
	if bad {
		return 0, fmt.Errorf("%w: %q is not a decimal of at most %d places, such as \"0.10\"", ErrPrice, s, places)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q: %w", ErrPrice, s, err)
	}
	return n, nil
}

// formatDecimal writes n, a whole number of the given decimal place, with at
// least so many decimals.
func formatDecimal(n int64, places, least int) string {
	s := fmt.Sprintf("%0*d", places+1, n)
	cut := len(s) - places
	text := s[:cut] + "." + s[cut:cut+least] + strings.TrimRight(s[cut+least:], "0")
	return strings.TrimSuffix(text, ".")
}
