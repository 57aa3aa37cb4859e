package pickerconfig

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

// quantity reads a number as Kubernetes writes resource quantities: a decimal
// number with an optional suffix, "1k" for 1,000, "1Ki" for 1,024, or an
// exponent. The result is rounded up to a whole number, as Quantity.Value is.
func quantity(s string) (int64, error) {
	wrong := fmt.Errorf(`%.60q is not a quantity: write a number of at least 0, with a suffix of k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi or Ei if wanted`, s)
	digits := strings.TrimRight(s, "numkKMGTPEi")
	factor, ok := suffix(s[len(digits):])
	if !ok || len(s) > 40 || strings.Trim(digits, "0123456789.eE+-") != "" || strings.ContainsAny(digits, "eE") && len(digits) != len(s) {
		return 0, wrong
	}
	if mantissa, exponent, found := strings.Cut(strings.ToLower(digits), "e"); found {
		if len(strings.TrimLeft(exponent, "+-0")) > 2 || mantissa == "" { // a huge power would take long to compute
			return 0, wrong
		}
	}
	n, ok := new(big.Rat).SetString(digits)
	if !ok || n.Sign() < 0 {
		return 0, wrong
	}
	n.Mul(n, factor)
	up := new(big.Int).Add(n.Num(), new(big.Int).Sub(n.Denom(), big.NewInt(1)))
	up.Quo(up, n.Denom())
	if !up.IsInt64() {
		return math.MaxInt64, nil
	}
	return up.Int64(), nil
}

// suffix is what a quantity's suffix multiplies by.
func suffix(s string) (*big.Rat, bool) {
	switch s {
	case "n":
		return big.NewRat(1, 1e9), true
	case "u":
		return big.NewRat(1, 1e6), true
	case "m":
		return big.NewRat(1, 1e3), true
	case "":
		return big.NewRat(1, 1), true
	}
	base, power := int64(1000), strings.Index("kMGTPE", s[:1])
	if prefix, binary := strings.CutSuffix(s, "i"); binary {
		base, power, s = 1024, strings.Index("KMGTPE", s[:1]), prefix
	}
	if len(s) != 1 || power < 0 {
		return nil, false
	}
	n := new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(power)+1), nil)
	return new(big.Rat).SetInt(n), true
}
