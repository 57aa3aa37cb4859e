package billing

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Price is what a model's tokens cost from a moment on. Rates are in pico-USD
// per token, which is the same number as micro-USD per million tokens: a list
// price with six decimals is exact. A published price never changes; another
// price is another version.
type Price struct {
	Model         string
	Version       int64 // unique over all models; 0 before it is stored
	EffectiveFrom time.Time
	Input         int64 // uncached input
	CachedInput   int64
	Output        int64
	Reasoning     int64
}

// maxRate is a thousand dollars a token. With MaxTokens it keeps sums in 128 bits.
const maxRate = 1_000_000_000_000_000

var (
	// ErrPrice marks a price that can't be published.
	ErrPrice = errors.New("billing: invalid price")
	// ErrCost marks a cost beyond what nano-USD in 64 bits can hold (9.2e9 USD).
	ErrCost = errors.New("billing: cost out of range")
)

// Validate reports what keeps the price from being published, as ErrPrice.
func (p Price) Validate() error {
	if p.Model == "" {
		return fmt.Errorf("%w: no model", ErrPrice)
	}
	for _, rate := range [...]int64{p.Input, p.CachedInput, p.Output, p.Reasoning} {
		if rate < 0 || rate > maxRate {
			return fmt.Errorf("%w: %s: a rate must be between 0 and 1000000000 USD per million tokens", ErrPrice, p.Model)
		}
	}
	if p.CachedInput > p.Input {
		return fmt.Errorf("%w: %s: cached_input is dearer than input", ErrPrice, p.Model)
	}
	return nil
}

// Cost is the price of u in nano-USD. The sum over the classes is exact and is
// rounded once, half up; this is the only place where money is rounded before
// an invoice. The error is ErrUsage or ErrCost.
func (p Price) Cost(u Usage) (nano int64, err error) {
	if err := u.Validate(); err != nil {
		return 0, err
	}
	if err := p.Validate(); err != nil {
		return 0, err
	}
	var sum uint128
	sum.addProduct(u.InputUncached, p.Input)
	sum.addProduct(u.InputCached, p.CachedInput)
	sum.addProduct(u.Output, p.Output)
	sum.addProduct(u.Reasoning, p.Reasoning)
	return sum.nano()
}

// uint128 sums pico-USD.
type uint128 struct{ hi, lo uint64 }

// addProduct adds two factors that are not negative.
func (s *uint128) addProduct(tokens, rate int64) {
	hi, lo := bits.Mul64(uint64(tokens), uint64(rate)) //nolint:gosec // both were checked to be >= 0
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

func (s *uint128) nano() (int64, error) {
	const picoPerNano = 1000
	lo, carry := bits.Add64(s.lo, picoPerNano/2, 0)
	hi := s.hi + carry
	if hi >= picoPerNano {
		return 0, ErrCost
	}
	q, _ := bits.Div64(hi, lo, picoPerNano)
	if q > 1<<63-1 {
		return 0, ErrCost
	}
	return int64(q), nil
}

// usdDecimals is how many decimals of a USD per million tokens are exact.
const usdDecimals = 6

// ParseUSD reads a decimal string of USD per million tokens, such as "0.10",
// as pico-USD per token. It takes digits with at most six decimals: no sign,
// no exponent, no spaces. The error is ErrPrice.
func ParseUSD(s string) (pico int64, err error) {
	whole, frac, point := strings.Cut(s, ".")
	bad := whole == "" || point && frac == "" || len(frac) > usdDecimals || len(whole) > 10
	digits := whole + frac + strings.Repeat("0", usdDecimals-min(len(frac), usdDecimals))
	for i := range len(digits) {
		bad = bad || digits[i] < '0' || digits[i] > '9'
	}
	if bad {
		return 0, fmt.Errorf("%w: %q is not a decimal of at most %d places, such as \"0.10\"", ErrPrice, s, usdDecimals)
	}
	pico, err = strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q: %w", ErrPrice, s, err)
	}
	return pico, nil
}

// FormatUSD writes pico-USD per token as USD per million tokens, with at least
// two decimals. ParseUSD reads it back.
func FormatUSD(pico int64) string {
	s := fmt.Sprintf("%07d", pico)
	cut := len(s) - usdDecimals
	frac := strings.TrimRight(s[cut+2:], "0")
	return s[:cut] + "." + s[cut:cut+2] + frac
}
