package billing

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestUSDIsReadExactly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       int64
	}{
		{"cents", "0.10", 100_000},
		{"a whole dollar", "1", 1_000_000},
		{"six decimals", "0.000001", 1},
		{"nothing", "0", 0},
		{"trailing zeros", "2.500000", 2_500_000},
		{"leading zeros", "007.5", 7_500_000},
		{"the largest", "1000000000", maxRate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseUSD(tt.text)
			if err != nil || got != tt.want {
				t.Errorf("got %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

func TestWhatIsNoPlainDecimalIsNoPrice(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", ".", "1.", ".5", "-1", "+1", "1e3", "0x1", " 1", "1 ", "1,5", "0.1234567", "$1", "NaN", "Inf", "1.2.3",
		"٣", "99999999999999999999", "1_000",
	} {
		if got, err := ParseUSD(text); !errors.Is(err, ErrPrice) {
			t.Errorf("%q: got %d, %v, want ErrPrice", text, got, err)
		}
	}
}

func TestFormattedUSDReadsBackTheSame(t *testing.T) {
	t.Parallel()
	for pico, want := range map[int64]string{0: "0.00", 1: "0.000001", 100_000: "0.10", 2_500_000: "2.50", 1_234_567: "1.234567", maxRate: "1000000000.00"} {
		if got := FormatUSD(pico); got != want {
			t.Errorf("FormatUSD(%d) = %q, want %q", pico, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		pico := rapid.Int64Range(0, maxRate).Draw(t, "pico")
		got, err := ParseUSD(FormatUSD(pico))
		if err != nil || got != pico {
			t.Fatalf("%d became %q and then %d, %v", pico, FormatUSD(pico), got, err)
		}
	})
}
