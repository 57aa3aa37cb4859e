// Package media turns the media that a request names into what a model server
// takes: images and files at addresses are fetched here, and nowhere inside the
// fleet, and become data: URLs; documents become text for models that read
// nothing else.
package media

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/tenants"
)

// Kind is what a source has to be.
type Kind int

// The kinds.
const (
	Image Kind = iota + 1 // png, jpeg, gif or webp
	File                  // pdf or text
)

// Source is one medium that a request names.
type Source struct {
	Kind Kind
	URL  string // http, https or data:; of a File also plain base64
	Name string // of a File; empty: that of its address
	Text bool   // of a File: its text is wanted, not its bytes
}

// Loaded is a source, ready for a model server.
type Loaded struct {
	URL  string // data:, typed as the content is; empty where Text was wanted
	Name string
	Text string
}

// Prompt is the text of a file as a model reads it, under the file's name.
func (l Loaded) Prompt() string {
	name := l.Name
	if name == "" {
		name = "file"
	}
	return "[" + name + "]\n" + l.Text
}

// Problem is a fault of one source, in words for the caller.
type Problem struct { //nolint:errname // what problem documents call it
	Source  int    // its place in the request's list
	Code    string // OpenAI's, where it has one
	Message string
}

func (p *Problem) Error() string { return p.Message }

// BusyError says that too many requests have their media fetched right now: Own
// tells whether too many of the tenant's own.
type BusyError struct{ Own bool }

func (e *BusyError) Error() string { return "too many requests with media at the same time" }

// Bounds of one request, and of all.
const (
	maxSources = 64
	maxBytes   = 20 << 20 // of one source
	maxTotal   = 32 << 20 // of a request
	atOnce     = 5        // sources of a request
	maxLoads   = 16       // requests
	maxOwn     = 6        // requests of one tenant
	loadTime   = 45 * time.Second
)

// Loader loads media. It is safe for concurrent use.
type Loader struct {
	log    *slog.Logger
	client *http.Client
	pdf    *Extractor

	mu    sync.Mutex
	loads map[tenants.ID]int // running ones
	all   int
}

// NewLoader returns a Loader that fetches with the client, which must check
// where it connects to (notify.NewClient). Without a client nothing is fetched,
// without an Extractor no PDF document is read; each is then a Problem.
func NewLoader(log *slog.Logger, client *http.Client, pdf *Extractor) *Loader {
	return &Loader{log: log, client: client, pdf: pdf, loads: map[tenants.ID]int{}}
}

// Load loads all sources of a request, in their order. A fault of the caller's
// is a *Problem; a *BusyError passes.
func (l *Loader) Load(ctx context.Context, tenant tenants.ID, sources []Source) ([]Loaded, error) {
	if len(sources) > maxSources {
		return nil, &Problem{Source: maxSources, Code: "array_above_max_length", Message: fmt.Sprintf("The request names more than %d images and files.", maxSources)}
	}
	leave, err := l.enter(tenant)
	if err != nil {
		return nil, err
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	loaded := make([]Loaded, len(sources))
	left := &budget{}
	left.bytes.Store(maxTotal)
	group, groupCtx := errgroup.WithContext(limited)
	group.SetLimit(atOnce)
	for i, s := range sources {
		group.Go(func() (err error) {
			loaded[i], err = l.load(groupCtx, s, left)
			if p, ok := errors.AsType[*fault](err); ok {
				l.note(tenant, err)
				return &Problem{Source: i, Code: p.code, Message: p.message}
			}
			return err
		})
	}
	err = group.Wait()
	switch {
	case err == nil:
		return loaded, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &Problem{Code: codeDownload, Message: "The images and files of the request took too long to download."}
	default:
		return nil, err
	}
}

// enter takes one of the places for requests with media; leave gives it back.
func (l *Loader) enter(tenant tenants.ID) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.loads[tenant] >= maxOwn:
		return nil, &BusyError{Own: true}
	case l.all >= maxLoads:
		return nil, &BusyError{}
	}
	l.loads[tenant]++
	l.all++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all--
		if l.loads[tenant]--; l.loads[tenant] == 0 {
			delete(l.loads, tenant)
		}
	}, nil
}

// budget is what a request's media may still take.
type budget struct{ bytes atomic.Int64 }

func (b *budget) take(n int) error {
	if b.bytes.Add(-int64(n)) < 0 {
		return &fault{code: codeTooLarge, message: fmt.Sprintf("The images and files of the request are larger than %d MiB together.", maxTotal>>20)}
	}
	return nil
}

func (l *Loader) load(ctx context.Context, s Source, left *budget) (Loaded, error) {
	raw, name, err := l.bytesOf(ctx, s, left)
	if err != nil {
		return Loaded{}, err
	}
	if s.Name != "" {
		name = s.Name
	}
	kind := sniff(raw)
	if err := s.accepts(kind, len(raw)); err != nil {
		return Loaded{}, err
	}
	if s.Kind == File && s.Text {
		text, err := l.textOf(ctx, kind, raw)
		return Loaded{Name: name, Text: text}, err
	}
	return Loaded{Name: name, URL: "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(raw)}, nil
}

func (l *Loader) textOf(ctx context.Context, kind string, raw []byte) (string, error) {
	if kind == plainType {
		return string(raw), nil
	}
	if l.pdf == nil {
		return "", &fault{code: codeUnsupported, message: "The model takes text, and PDF documents are not read here."}
	}
	text, err := l.pdf.text(ctx, raw)
	switch {
	case errors.Is(err, errNoText):
		return "", &fault{code: codeUnsupported, message: "The PDF document has no text: it may be a scan. Send its pages as images."}
	case errors.Is(err, errUnreadable):
		return "", &fault{code: codeFile, message: "The PDF document can't be read: it is broken, protected by a password, or too large.", cause: err}
	default:
		return text, err
	}
}
