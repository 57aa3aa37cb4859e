package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"weir/gateway"
)

// zstdWindow is the most that a zstd frame may make us remember: what RFC 9659
// sets for HTTP.
const zstdWindow = 8 << 20

// The codings that bodies may have.
const (
	gzipCoding    = "gzip"
	deflateCoding = "deflate"
	zstdCoding    = "zstd"
)

// contentCoding reads the Content-Encoding; "" is none. Only one coding is
// taken: layers would multiply what a small body can expand to.
func contentCoding(values []string) (string, error) {
	if len(values) == 0 {
		return "", nil
	}
	switch coding := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); coding {
	case "", "identity":
		return "", nil
	case gzipCoding, "x-gzip":
		return gzipCoding, nil
	case deflateCoding, zstdCoding:
		return coding, nil
	default:
		return "", because(wrongEncoding, nil)
	}
}

// decoder holds what decoding needs to remember between bodies.
type decoder struct {
	gzip *gzip.Reader
	zstd *zstd.Decoder
	src  bytes.Reader
}

// decoders bounds how many decode at once: as many as there are processors.
// Their memory, and not that of the callers who compress, is what it costs.
type decoders chan *decoder

func newDecoders() decoders {
	d := make(decoders, runtime.GOMAXPROCS(0))
	for range cap(d) {
		d <- &decoder{}
	}
	return d
}

func (d decoders) acquire(ctx context.Context) (*decoder, error) {
	select {
	case dec := <-d:
		return dec, nil
	case <-ctx.Done():
		return nil, because(gateway.ClientGone, ctx.Err())
	}
}

func (d decoders) release(dec *decoder) {
	dec.src.Reset(nil)
	d <- dec
}

// open returns a reader of the decoded bytes.
func (d *decoder) open(coding string, raw []byte) (io.Reader, error) {
	d.src.Reset(raw)
	switch coding {
	case gzipCoding:
		return d.openGzip()
	case zstdCoding:
		return d.openZstd()
	default:
		// The standard says zlib; some clients send the bare stream.
		if len(raw) > 1 && raw[0]&0x0f == 8 && (int(raw[0])<<8|int(raw[1]))%31 == 0 {
			return zlib.NewReader(&d.src)
		}
		return flate.NewReader(&d.src), nil
	}
}

func (d *decoder) openGzip() (io.Reader, error) {
	if d.gzip == nil {
		d.gzip = new(gzip.Reader)
	}
	return d.gzip, d.gzip.Reset(&d.src)
}

func (d *decoder) openZstd() (io.Reader, error) {
	if d.zstd == nil {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderMaxMemory(zstdWindow))
		if err != nil {
			return nil, err
		}
		d.zstd = z
	}
	return d.zstd, d.zstd.Reset(&d.src)
}

// corruptReader gives a decoder's errors their cause.
type corruptReader struct{ io.Reader }

func (c corruptReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = because(bodyCorrupt, err)
	}
	return n, err
}

func isCause(err error, cause gateway.Cause) bool {
	e, ok := errors.AsType[*gateway.Error](err)
	return ok && e.Cause == cause
}

func causeKnown(err error) bool {
	_, ok := errors.AsType[*gateway.Error](err)
	return ok
}
