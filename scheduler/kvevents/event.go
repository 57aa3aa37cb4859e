package kvevents

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// The kinds of events.
const (
	stored  = "BlockStored"
	removed = "BlockRemoved"
	cleared = "AllBlocksCleared"
)

const (
	maxNested = 16      // of arrays and maps in what isn't read
	maxBlocks = 1 << 16 // of one event
	maxEvents = 1 << 16 // of one batch
)

var errMalformed = errors.New("malformed event")

// event is one that an engine published. Its hashes are the engine's own, cut to
// 64 bits; what it holds of prompts, its tokens and extra keys, is dropped once
// they have been hashed.
type event struct {
	kind      string
	hashes    []uint64
	parent    uint64
	hasParent bool
	tokens    []uint64
	blockSize int
	medium    string
	adapted   bool       // the blocks are of a LoRA adapter
	extra     [][]string // of each block, what its hash has beside tokens
	group     int64      // of layers; 0 where a model has one kind
	copies    []int64    // of each removed block: how many are left; nil: not said
}

// fields are the positions in the array encoding, after the kind.
func fields(kind string) []string {
	switch kind {
	case stored:
		return []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"}
	case removed:
		return []string{"block_hashes", "medium", "group_idx", "remaining_copy_counts"}
	default:
		return nil
	}
}

// decoder reads a batch: [time, [events], rank], each event an array that begins
// with its kind, or a map with the kind as "type".
type decoder struct {
	*msgpack.Decoder

	raw []byte
	in  *bytes.Reader
}

func newDecoder(raw []byte) *decoder {
	in := bytes.NewReader(raw)
	return &decoder{Decoder: msgpack.NewDecoder(in), raw: raw, in: in}
}

// decode calls take with each event. The event is reused.
func decode(raw []byte, take func(*event)) error {
	d := newDecoder(raw)
	var e event
	read := func() error {
		return d.list(maxEvents, func() error {
			if err := d.event(&e); err != nil {
				return err
			}
			take(&e)
			return nil
		})
	}
	code, err := d.PeekCode()
	switch {
	case err != nil:
	case isMap(code):
		err = d.members(func(name string) error {
			if name == "events" {
				return read()
			}
			return d.skip(0)
		})
	default:
		at := 0
		err = d.list(maxNested, func() error {
			if at++; at == 2 {
				return read()
			}
			return d.skip(0)
		})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return nil
}

func (d *decoder) event(e *event) error {
	*e = event{hashes: e.hashes[:0], tokens: e.tokens[:0], extra: e.extra[:0]}
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	if isMap(code) {
		return d.members(func(name string) (err error) {
			if name == "type" {
				e.kind, err = d.text()
				return err
			}
			return d.field(e, name)
		})
	}
	at := 0
	return d.list(maxNested, func() (err error) {
		if at++; at == 1 {
			e.kind, err = d.text()
			return err
		}
		if names := fields(e.kind); at-2 < len(names) {
			return d.field(e, names[at-2])
		}
		return d.skip(0)
	})
}

func (d *decoder) field(e *event, name string) (err error) {
	switch name {
	case "block_hashes":
		return d.list(maxBlocks, func() error {
			h, _, err := d.hash()
			e.hashes = append(e.hashes, h)
			return err
		})
	case "parent_block_hash":
		e.parent, e.hasParent, err = d.hash()
	case "token_ids":
		return d.list(len(d.raw), func() error {
			t, err := d.DecodeUint64()
			e.tokens = append(e.tokens, t)
			return err
		})
	case "block_size":
		e.blockSize, err = d.DecodeInt()
	case "medium":
		e.medium, err = d.text()
	case "lora_id", "lora_name":
		e.adapted = !d.isNil() || e.adapted
		return d.skip(0)
	case "extra_keys":
		return d.list(maxBlocks, func() error {
			keys, err := d.keys()
			e.extra = append(e.extra, keys)
			return err
		})
	case "group_idx":
		if !d.isNil() {
			e.group, err = d.DecodeInt64()
			return err
		}
		return d.skip(0)
	case "remaining_copy_counts":
		return d.list(maxBlocks, func() error {
			n, err := d.DecodeInt64()
			e.copies = append(e.copies, n)
			return err
		})
	default:
		return d.skip(0)
	}
	return err
}

// list calls each for each element of an array; nil has none.
func (d *decoder) list(most int, each func() error) error {
	n, err := d.DecodeArrayLen()
	if err != nil {
		return err
	}
	if n > most {
		return fmt.Errorf("an array of %d, at most %d are taken", n, most)
	}
	for range max(n, 0) {
		if err := each(); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) members(each func(name string) error) error {
	n, err := d.DecodeMapLen()
	if err != nil {
		return err
	}
	for range max(n, 0) {
		name, err := d.text()
		if err != nil {
			return err
		}
		if err := each(name); err != nil {
			return err
		}
	}
	return nil
}

// text reads a short string, or nil as "".
func (d *decoder) text() (string, error) {
	b, err := d.DecodeBytes()
	return string(b), err
}

// hash reads an integer or bytes; false: nil.
func (d *decoder) hash() (h uint64, ok bool, err error) {
	code, err := d.PeekCode()
	switch {
	case err != nil:
		return 0, false, err
	case code == msgpcode.Nil:
		return 0, false, d.DecodeNil()
	case msgpcode.IsBin(code) || msgpcode.IsString(code):
		b, err := d.DecodeBytes()
		return xxhash.Sum64(b), true, err
	default:
		h, err = d.DecodeUint64()
		return h, true, err
	}
}

// keys reads the extra keys of a block: texts as they are, all else as it is
// encoded.
func (d *decoder) keys() (keys []string, err error) {
	err = d.list(maxNested, func() error {
		code, err := d.PeekCode()
		if err != nil {
			return err
		}
		if msgpcode.IsString(code) {
			s, err := d.text()
			keys = append(keys, s)
			return err
		}
		from := len(d.raw) - d.in.Len()
		err = d.skip(0)
		keys = append(keys, string(d.raw[from:len(d.raw)-d.in.Len()]))
		return err
	})
	return keys, err
}

// isNil reports whether nil comes next.
func (d *decoder) isNil() bool {
	code, err := d.PeekCode()
	return err == nil && code == msgpcode.Nil
}

// skip passes over one value. The library's own does so to any depth, on the
// stack.
func (d *decoder) skip(depth int) error {
	code, err := d.PeekCode()
	switch {
	case err != nil:
		return err
	case depth > maxNested:
		return fmt.Errorf("nested more than %d deep", maxNested)
	case isArray(code):
		return d.list(len(d.raw), func() error { return d.skip(depth + 1) })
	case isMap(code):
		n, err := d.DecodeMapLen()
		for i := 0; err == nil && i < 2*n; i++ {
			err = d.skip(depth + 1)
		}
		return err
	default:
		return d.Skip()
	}
}

func isArray(code byte) bool {
	return msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32
}

func isMap(code byte) bool {
	return msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32
}
