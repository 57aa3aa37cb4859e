package responses

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// Prefixes of ids. An id is its prefix and 26 characters of base32, 128 random
// bits: nobody guesses one, and a look-up asks for the tenant besides.
const (
	responsePrefix     = "resp_"
	conversationPrefix = "conv_"
	messagePrefix      = "msg_"
	reasoningPrefix    = "rs_"
	callPrefix         = "fc_"
	customCallPrefix   = "ctc_"
	outputPrefix       = "fco_"
	customOutputPrefix = "ctco_"
	compactionPrefix   = "cmp_"
	itemPrefix         = "item_"
)

// NewID makes the id of a response.
func NewID() string { return newID(responsePrefix) }

func newID(prefix string) string {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never fails
	return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(bits[:]))
}
