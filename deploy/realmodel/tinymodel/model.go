package main

import (
	"fmt"
	"math/rand/v2"
)

// The model's shape.
const (
	width   = 64 // of the residual stream
	heads   = 4
	hidden  = 128 // of the feed-forward layers
	layers  = 2
	context = 8192
)

// constant is the one dimension of the residual stream that no layer changes.
// Through it an output row has what llama.cpp's llama architecture lacks, a
// bias: it decides which tokens the model likes to say at all.
const constant = 0

// weights draws numbers that are the same on every machine: the generator is
// specified, and there is one rounding for each number.
type weights struct{ *rand.PCG }

// matrix draws rows*columns numbers between -scale and scale.
func (w weights) matrix(rows, columns int, scale float64) []float32 {
	m := make([]float32, rows*columns)
	for i := range m {
		m[i] = float32(float64(int64(w.Uint64()>>40)-1<<23) * (scale / (1 << 23)))
	}
	return m
}

// quiet takes a row's influence away.
func quiet(m []float32, row, columns int) {
	clear(m[row*columns : (row+1)*columns])
}

func ones(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = 1
	}
	return v
}

// tinyModel returns the whole file.
func tinyModel() []byte {
	f := &file{}
	tokens := vocabulary()
	describe(f, tokens)
	w := weights{rand.NewPCG(1, 2)}

	embedding := w.matrix(len(tokens), width, 1)
	output := w.matrix(len(tokens), width, 0.4)
	for i, t := range tokens {
		embedding[i*width+constant] = 4
		if t.kind != normalToken {
			quiet(output, i, width)
		}
		output[i*width+constant] = t.bias
	}
	f.tensor("token_embd.weight", width, len(tokens), embedding)
	for i := range layers {
		layer(f, w, fmt.Sprintf("blk.%d.", i))
	}
	f.tensor("output_norm.weight", width, 1, ones(width))
	f.tensor("output.weight", width, len(tokens), output)
	return f.bytes()
}

func layer(f *file, w weights, name string) {
	f.tensor(name+"attn_norm.weight", width, 1, ones(width))
	for _, part := range []string{"attn_q", "attn_k", "attn_v"} {
		f.tensor(name+part+".weight", width, width, w.matrix(width, width, 0.25))
	}
	back := w.matrix(width, width, 0.25)
	quiet(back, constant, width)
	f.tensor(name+"attn_output.weight", width, width, back)

	f.tensor(name+"ffn_norm.weight", width, 1, ones(width))
	f.tensor(name+"ffn_gate.weight", width, hidden, w.matrix(hidden, width, 0.25))
	f.tensor(name+"ffn_up.weight", width, hidden, w.matrix(hidden, width, 0.25))
	back = w.matrix(width, hidden, 0.15)
	quiet(back, constant, hidden)
	f.tensor(name+"ffn_down.weight", hidden, width, back)
}

func describe(f *file, tokens []token) {
	f.text("general.architecture", "llama")
	f.text("general.name", "tiny, with made-up weights")
	f.number("llama.context_length", context)
	f.number("llama.embedding_length", width)
	f.number("llama.feed_forward_length", hidden)
	f.number("llama.block_count", layers)
	f.number("llama.attention.head_count", heads)
	f.number("llama.attention.head_count_kv", heads)
	f.number("llama.rope.dimension_count", width/heads)
	f.float("llama.attention.layer_norm_rms_epsilon", 1e-5)
	f.number("llama.vocab_size", uint32(len(tokens))) //nolint:gosec // some hundreds

	f.text("tokenizer.ggml.model", "llama")
	f.list("tokenizer.ggml.tokens", typeString, len(tokens))
	for _, t := range tokens {
		putString(&f.meta, t.text)
	}
	f.list("tokenizer.ggml.scores", typeFloat32, len(tokens))
	for _, t := range tokens {
		put(&f.meta, t.score)
	}
	f.list("tokenizer.ggml.token_type", typeInt32, len(tokens))
	for _, t := range tokens {
		put(&f.meta, t.kind)
	}
	f.number("tokenizer.ggml.unknown_token_id", unknown)
	f.number("tokenizer.ggml.bos_token_id", begin)
	f.number("tokenizer.ggml.eos_token_id", end)
	f.flag("tokenizer.ggml.add_bos_token", true)
	f.flag("tokenizer.ggml.add_eos_token", false)
	f.flag("tokenizer.ggml.add_space_prefix", false) // a grammar is also held against the template's last words
	f.text("tokenizer.chat_template", chatTemplate)
}

const chatTemplate = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}" +
	"{% if add_generation_prompt %}assistant:{% endif %}"
