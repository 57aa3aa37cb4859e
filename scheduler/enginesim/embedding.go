package enginesim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	"github.com/cespare/xxhash/v2"
)

type embeddingRequest struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Encoding   string          `json:"encoding_format"`
	Dimensions *int            `json:"dimensions"`
}

type embeddingItem struct {
	Index     int    `json:"index"`
	Object    string `json:"object"`
	Embedding any    `json:"embedding"`
}

type embeddingList struct {
	ID     string          `json:"id"`
	Object string          `json:"object"`
	Model  string          `json:"model"`
	Data   []embeddingItem `json:"data"`
	Usage  usage           `json:"usage"`
}

func (e *Engine) embedding(c *call) error {
	var r embeddingRequest
	if err := decodeJSON(c.body, &r); err != nil {
		return err
	}
	if err := e.known(r.Model); err != nil {
		return err
	}
	inputs, err := texts("input", r.Input)
	if err != nil {
		return err
	}
	dims := e.cfg.EmbeddingDims
	if r.Dimensions != nil {
		if dims = *r.Dimensions; dims < 1 || dims > e.cfg.EmbeddingDims {
			return badRequest("dimensions", "dimensions must be from 1 to %d, got %d.", e.cfg.EmbeddingDims, dims)
		}
	}
	if r.Encoding != "" && r.Encoding != "float" && r.Encoding != "base64" {
		return badRequest("encoding_format", "encoding_format should be 'float' or 'base64'.")
	}

	j := e.newJob(c, &sampling{Model: r.Model}, "embd")
	list := embeddingList{ID: j.id, Object: "list", Model: j.model}
	for i, input := range inputs {
		if len(input) > e.cfg.ContextLength {
			return badRequest("input", "This model's maximum context length is %d tokens. However, you requested %d tokens in the input.",
				e.cfg.ContextLength, len(input))
		}
		j.prompts++
		j.prompt += len(input)
		j.choices = append(j.choices, &choice{index: i, seq: &sequence{prompt: len(input), finish: "stop", wake: j.wake}})
		list.Data = append(list.Data, embeddingItem{Index: i, Object: "embedding", Embedding: encode(embed(input, dims), r.Encoding)})
	}
	return e.compute(c, j, list)
}

// compute runs the prompts through the machine, then answers.
func (e *Engine) compute(c *call, j *job, list embeddingList) error {
	if err := pause(c.r.Context(), c.fault.firstToken); err != nil {
		e.finish(c, "aborted", 0)
		return err
	}
	if err := c.rank.submit(j.sequences()...); err != nil {
		return unavailable(err)
	}
	defer c.rank.abort(j.sequences()...)
	if err := e.wait(c.r.Context(), j); err != nil {
		e.finish(c, "aborted", 0)
		return err
	}
	list.Usage = j.usage()
	e.finish(c, "completed", 0)
	return c.document(list)
}

// embed hashes each token into a few dimensions: texts that share words are
// near each other. The vector has length 1.
func embed(tokens []token, dims int) []float32 {
	sums := make([]float64, dims)
	var b [9]byte
	for _, t := range tokens {
		binary.LittleEndian.PutUint64(b[:], uint64(t))
		for k := range byte(8) {
			b[8] = k
			h := xxhash.Sum64(b[:])
			sums[(h>>1)%uint64(dims)] += float64(h&1)*2 - 1 //nolint:gosec // dims is positive
		}
	}
	norm := 0.0
	for _, v := range sums {
		norm += v * v
	}
	if norm == 0 {
		sums[0], norm = 1, 1
	}
	out := make([]float32, dims)
	for i, v := range sums {
		out[i] = float32(v / math.Sqrt(norm))
	}
	return out
}

func encode(v []float32, encoding string) any {
	if encoding != "base64" {
		return v
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
