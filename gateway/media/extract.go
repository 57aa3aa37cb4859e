package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"runtime/debug"
	"time"
)

// Bounds of the process that reads a document.
const (
	extractTime   = 20 * time.Second
	extractCPU    = 15        // seconds
	extractHeap   = 256 << 20 // bytes that the collector aims at
	extractMemory = 512 << 20 // bytes at which the system refuses more
	extractStack  = 64 << 20
)

var (
	errNoText     = errors.New("the document has no text")
	errUnreadable = errors.New("the document can't be read")
)

// Extract reads a PDF document from in and writes its text to out. It is the
// whole of a process of its own (`weir extract`): documents come from strangers,
// and a reader of PDF that meets a broken one may need all memory and time that
// there is. It bounds the process that calls it, for good, before it reads.
func Extract(in io.Reader, out io.Writer) error {
	if err := limitProcess(); err != nil {
		return err
	}
	debug.SetMemoryLimit(extractHeap)
	debug.SetMaxStack(extractStack)
	raw, err := io.ReadAll(io.LimitReader(in, maxBytes+1))
	if err != nil {
		return err
	}
	text, err := pdfText(raw)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

// Extractor runs Extract in processes of its own, a few at a time. It is safe
// for concurrent use.
type Extractor struct {
	program string
	args    []string
	slots   chan struct{}
}

// NewExtractor returns an Extractor. The program, which is called with args
// (args[0] is its name), calls Extract on its standard input and output.
func NewExtractor(program string, args ...string) *Extractor {
	return &Extractor{program: program, args: args, slots: make(chan struct{}, max(runtime.NumCPU()/2, 1))}
}

// text returns the text of a document. The error is errNoText or wraps
// errUnreadable where the document is at fault.
func (x *Extractor) text(ctx context.Context, document []byte) (string, error) {
	select {
	case x.slots <- struct{}{}:
		defer func() { <-x.slots }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	limited, cancel := context.WithTimeout(ctx, extractTime)
	defer cancel()
	cmd := exec.CommandContext(limited, x.program) //nolint:gosec // our own program
	cmd.Args = x.args
	cmd.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=none"} // ours has secrets
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(document)
	cmd.WaitDelay = time.Second
	var out, complaint clipped
	out.most, complaint.most = maxText, 512
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	_, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case ended || limited.Err() != nil || out.cut:
		return "", fmt.Errorf("%w: %w: %q", errUnreadable, errors.Join(err, limited.Err()), complaint.Bytes())
	case err != nil:
		return "", fmt.Errorf("start %s: %w", x.program, err)
	case len(bytes.TrimSpace(out.Bytes())) == 0:
		return "", errNoText
	default:
		return out.String(), nil
	}
}

// clipped keeps the first bytes of what is written.
type clipped struct {
	bytes.Buffer

	most int
	cut  bool
}

func (c *clipped) Write(p []byte) (int, error) {
	kept := p[:min(len(p), c.most-c.Len())]
	c.cut = c.cut || len(kept) < len(p)
	_, _ = c.Buffer.Write(kept) // never fails
	return len(p), nil
}
