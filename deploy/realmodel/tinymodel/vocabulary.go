package main

import (
	"fmt"
	"strings"
)

// token is one entry of the vocabulary.
type token struct {
	text  string
	score float32 // higher ones are joined first when a text is cut into tokens
	kind  int32
	bias  float32 // how much the model likes to say it
}

// Kinds of tokens, as llama.cpp numbers them.
const (
	normalToken  int32 = 1
	unknownToken int32 = 2
	controlToken int32 = 3
	byteToken    int32 = 6
)

// Places of the special tokens.
const (
	unknown = iota
	begin
	end
)

// How much the model likes to say what. Words come in any order and end by
// chance after some dozens; single characters are there for what a grammar
// demands; half words and bytes are for reading alone.
const (
	never  = -8
	seldom = -1.5
	pause  = 0.1
	freely = 0.3
	ending = 0.45
	space  = "\u2581" // how the tokenizer writes it
)

// vocabulary has a token for each byte and each printable character, so that
// any text can be read, and for each word with all of its beginnings: two
// tokens are joined only to one that exists.
func vocabulary() []token {
	tokens := []token{
		unknown: {text: "<unk>", kind: unknownToken, bias: never},
		begin:   {text: "<s>", kind: controlToken, bias: never},
		end:     {text: "</s>", kind: controlToken, bias: ending},
	}
	for b := range 256 {
		tokens = append(tokens, token{text: fmt.Sprintf("<0x%02X>", b), kind: byteToken, bias: never})
	}
	at := make(map[string]int)
	add := func(text string, bias float32) {
		if i, ok := at[text]; ok {
			tokens[i].bias = max(tokens[i].bias, bias)
			return
		}
		at[text] = len(tokens)
		tokens = append(tokens, token{text: text, score: -float32(len(tokens)), kind: normalToken, bias: bias})
	}
	for word := range strings.FieldsSeq(words) {
		word = space + word
		for i := range word {
			if i > len(space) {
				add(word[:i], never)
			}
		}
		add(word, freely)
	}
	add(space, seldom)
	for c := '!'; c <= '~'; c++ {
		add(string(c), seldom)
	}
	for _, c := range []string{".", ",", `"`} { // a quotation mark ends a string of JSON
		add(c, pause)
	}
	return tokens
}

const words = `the a weir river water gate mill bridge bank lake stream stone boat field valley road
holds lets turns carries follows meets fills leaves slowly again now still before after over under
through wide calm old cold clear quiet deep narrow and but so while because`
