package billing

import "math/bits"

// uint128 sums pico-USD.
type uint128 struct{ hi, lo uint64 }

// sum is what u costs at the rates, in pico-USD before any multiplier. Both
// were checked: no part is negative, and the sum is below 2^93.
func (r *Rates) sum(u Usage) uint128 {
	var s uint128
	s.addProduct(u.InputUncached, r.Input)
	s.addProduct(u.InputCached, r.CachedInput)
	s.addProduct(u.Output, r.Output)
	s.addProduct(u.Reasoning, r.Reasoning)
	return s
}

// addProduct adds two factors that are not negative.
func (s *uint128) addProduct(tokens, rate int64) {
	hi, lo := bits.Mul64(uint64(tokens), uint64(rate)) //nolint:gosec // both were checked to be >= 0
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, lo, 0)
	s.hi, _ = bits.Add64(s.hi, hi, carry)
}

// basisPerNano is how many ten-thousandths of a pico-USD are a nano-USD.
const basisPerNano = 1000 * wholeTier

// nano is the sum times a multiplier in basis points, rounded half up to
// nano-USD. The product of a checked sum and multiplier is below 2^113.
func (s uint128) nano(multiplier int64) (int64, error) {
	m := uint64(multiplier) //nolint:gosec // a tier's multiplier is positive
	over, lo := bits.Mul64(s.lo, m)
	hi := s.hi*m + over
	lo, carry := bits.Add64(lo, basisPerNano/2, 0)
	hi += carry
	if hi >= basisPerNano {
		return 0, ErrCost
	}
	q, _ := bits.Div64(hi, lo, basisPerNano)
	if q > 1<<63-1 {
		return 0, ErrCost
	}
	return int64(q), nil
}
