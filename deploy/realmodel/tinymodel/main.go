// Command tinymodel writes a language model of a few hundred kilobytes with
// made-up weights as a GGUF file, which llama.cpp loads. What such a model says
// means nothing; everything around it is real: tokens, chat template, sampling,
// prefix cache, grammar. Usage: tinymodel FILE
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tinymodel FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], tinyModel(), 0o600); err != nil { //nolint:gosec // where the caller wants it
		fmt.Fprintln(os.Stderr, "tinymodel:", err)
		os.Exit(1)
	}
}
