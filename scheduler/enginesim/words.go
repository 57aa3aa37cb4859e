package enginesim

import (
	"math/rand/v2"
	"strings"
)

// vocabulary makes plain sentences. They mean nothing, and look like prose.
type vocabulary struct {
	adjectives, nouns, verbs, adverbs []string
}

func newVocabulary() vocabulary {
	return vocabulary{
		adjectives: strings.Fields("calm wide old quiet clear narrow slow bright deep cold steady green gentle high low broad still early"),
		nouns:      strings.Fields("river gate stream mill bridge valley bank lake field town boat stone channel meadow harbor garden forest road"),
		verbs:      strings.Fields("follows feeds crosses meets holds turns moves carries joins leaves fills guides divides reaches shapes passes"),
		adverbs:    strings.Fields("slowly today again quietly together often nearby early gently always still first"),
	}
}

func pick(rng *rand.Rand, from []string) string { return from[rng.IntN(len(from))] }

func (v vocabulary) sentence(rng *rand.Rand) string {
	return "The " + pick(rng, v.adjectives) + " " + pick(rng, v.nouns) + " " + pick(rng, v.verbs) +
		" the " + pick(rng, v.nouns) + " " + pick(rng, v.adverbs) + "."
}

// prose returns an opening and whole sentences, at least so many tokens of them.
func (v vocabulary) prose(rng *rand.Rand, opening string, tokens int) string {
	var b strings.Builder
	b.WriteString(opening)
	for n := len(pieceEnds(opening)); n < tokens; {
		s := v.sentence(rng)
		if b.Len() > 0 {
			s = " " + s
		}
		n += len(pieceEnds(s))
		b.WriteString(s)
	}
	return b.String()
}

// phrase returns a few words.
func (v vocabulary) phrase(rng *rand.Rand) string {
	return pick(rng, v.adjectives) + " " + pick(rng, v.nouns)
}
