package main

import (
	"bytes"
	"encoding/binary"
	"math"
)

// file is a GGUF file in the making: version 3, little-endian, all tensors in
// 32-bit floats. The format: ggml/docs/gguf.md in llama.cpp's source.
type file struct {
	pairs   int
	meta    bytes.Buffer // key-value pairs
	tensors int
	infos   bytes.Buffer // names, shapes and offsets of tensors
	data    bytes.Buffer // their values
}

// The types of values that are used here.
const (
	typeUint32  uint32 = 4
	typeInt32   uint32 = 5
	typeFloat32 uint32 = 6
	typeBool    uint32 = 7
	typeString  uint32 = 8
	typeArray   uint32 = 9
)

const alignment = 32

// put appends numbers of a fixed size.
func put(b *bytes.Buffer, numbers ...any) {
	for _, n := range numbers {
		_ = binary.Write(b, binary.LittleEndian, n) // a bytes.Buffer takes all
	}
}

// length is a number of things as the format writes it.
func length(n int) uint64 { return uint64(n) } //nolint:gosec // never negative

func putString(b *bytes.Buffer, s string) {
	put(b, length(len(s)))
	b.WriteString(s)
}

func (f *file) key(name string, kind uint32) {
	f.pairs++
	putString(&f.meta, name)
	put(&f.meta, kind)
}

func (f *file) text(name, v string) {
	f.key(name, typeString)
	putString(&f.meta, v)
}

func (f *file) number(name string, v uint32) {
	f.key(name, typeUint32)
	put(&f.meta, v)
}

func (f *file) float(name string, v float32) {
	f.key(name, typeFloat32)
	put(&f.meta, v)
}

func (f *file) flag(name string, v bool) {
	f.key(name, typeBool)
	put(&f.meta, v)
}

func (f *file) list(name string, kind uint32, n int) {
	f.key(name, typeArray)
	put(&f.meta, kind, length(n))
}

// tensor adds rows*columns values, row by row. A vector has one row.
func (f *file) tensor(name string, columns, rows int, values []float32) {
	f.tensors++
	putString(&f.infos, name)
	if rows == 1 {
		put(&f.infos, uint32(1), length(columns))
	} else {
		put(&f.infos, uint32(2), length(columns), length(rows))
	}
	put(&f.infos, uint32(0), length(f.data.Len())) // type: 32-bit floats
	for _, v := range values {
		put(&f.data, math.Float32bits(v))
	}
	pad(&f.data)
}

func pad(b *bytes.Buffer) {
	b.Write(make([]byte, (alignment-b.Len()%alignment)%alignment))
}

func (f *file) bytes() []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	put(&b, uint32(3))
	put(&b, length(f.tensors), length(f.pairs))
	b.Write(f.meta.Bytes())
	b.Write(f.infos.Bytes())
	pad(&b)
	b.Write(f.data.Bytes())
	return b.Bytes()
}
