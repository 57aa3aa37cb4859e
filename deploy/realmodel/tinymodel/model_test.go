package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTheModelIsThePinnedOneOnEveryMachine(t *testing.T) {
	t.Parallel()
	pinned, err := os.ReadFile("tiny.sha256")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(tinyModel())
	if got, want := hex.EncodeToString(sum[:]), strings.TrimSpace(string(pinned)); got != want {
		t.Errorf("the model's sha256 is %s, tiny.sha256 has %s", got, want)
	}
}

func TestAnyTextCanBeReadAndAnyDocumentWritten(t *testing.T) {
	t.Parallel()
	has := make(map[string]token)
	for _, tok := range vocabulary() {
		if _, twice := has[tok.text]; twice {
			t.Errorf("token %q is there twice", tok.text)
		}
		has[tok.text] = tok
	}
	for b := range 256 {
		if has[fmt.Sprintf("<0x%02X>", b)].kind != byteToken {
			t.Errorf("no token for byte %d", b)
		}
	}
	for c := '!'; c <= '~'; c++ {
		if has[string(c)].kind != normalToken {
			t.Errorf("no token for %q", c)
		}
	}
	for text, tok := range has {
		last, size := utf8.DecodeLastRuneInString(text)
		if tok.kind != normalToken || len(text) == size {
			continue
		}
		if _, ok := has[text[:len(text)-size]]; !ok {
			t.Errorf("%q can't be put together: there is nothing to which %q is joined", text, last)
		}
	}
}
