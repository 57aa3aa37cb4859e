package media

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"weir/tenants"
	"weir/tenants/notify"
)

// Codes of a Problem.
const (
	codeDownload    = "failed_to_download_image"
	codeImageURL    = "invalid_image_url"
	codeImageType   = "unsupported_image_media_type"
	codeImageEmpty  = "empty_image_file"
	codeTooLarge    = "image_too_large"
	codeFileGet     = "failed_to_download_file"
	codeFile        = "invalid_file"
	codeFileLarge   = "file_too_large"
	codeUnsupported = "unsupported_file"
)

// fault is a Problem that doesn't know yet whose it is, and what the operator
// may know of it.
type fault struct {
	code, message string
	cause         error
}

func (f *fault) Error() string {
	if f.cause != nil {
		return f.code + ": " + f.cause.Error()
	}
	return f.code
}

func (f *fault) Unwrap() error { return f.cause }

// note tells the operator of an address that was refused: somebody may be
// feeling their way around. Addresses of callers' own stay out of logs.
func (l *Loader) note(tenant tenants.ID, err error) {
	if refused, ok := errors.AsType[*notify.RefusedError](err); ok {
		l.log.Warn("address of media refused", "tenant", string(tenant), "target", refused.Target, "reason", refused.Reason)
	}
}

// code is the file's word for what has two.
func (s Source) code(image, file string) string {
	if s.Kind == Image {
		return image
	}
	return file
}

func (s Source) noun() string { return s.code("image", "file") }

// bytesOf returns the content of a source, and the name that its address gives.
func (l *Loader) bytesOf(ctx context.Context, s Source, left *budget) (raw []byte, name string, err error) {
	scheme, _, _ := strings.Cut(s.URL, ":")
	switch strings.ToLower(scheme) {
	case "http", "https":
		return l.fetch(ctx, s, left)
	case "data":
		raw, err = decodeData(s)
	default:
		if raw, err = base64.StdEncoding.DecodeString(s.URL); err != nil || s.Kind == Image {
			err = &fault{code: s.code(codeImageURL, codeFile), message: "The " + s.noun() + " must be an http, https or data: URL."}
		}
	}
	if err == nil {
		err = left.take(len(raw))
	}
	return raw, "", err
}

// decodeData decodes a data: URL (RFC 2397). What type it says is not asked.
func decodeData(s Source) ([]byte, error) {
	wrong := &fault{code: s.code("invalid_base64_image", codeFile), message: "The data: URL of the " + s.noun() + " can't be decoded."}
	head, data, ok := strings.Cut(s.URL, ",")
	if !ok {
		return nil, wrong
	}
	if !strings.HasSuffix(head, ";base64") {
		text, err := url.PathUnescape(data)
		if err != nil {
			return nil, wrong
		}
		return []byte(text), nil
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return nil, wrong
	}
	return raw, nil
}

// fetch downloads a source. All faults of an address and of what is there look
// alike, unless it answered: who asks learns nothing of a network behind us.
func (l *Loader) fetch(ctx context.Context, s Source, left *budget) ([]byte, string, error) {
	if l.client == nil {
		return nil, "", &fault{code: s.code(codeImageURL, codeFile), message: "Addresses are not fetched here: send the " + s.noun() + " as a data: URL."}
	}
	address, err := url.Parse(s.URL)
	if err == nil {
		err = notify.CheckURL(address)
	}
	if err != nil {
		return nil, "", &fault{code: s.code(codeImageURL, codeFile), message: "The address of the " + s.noun() + " is no plain http or https URL.", cause: err}
	}
	failed := s.code(codeDownload, codeFileGet)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		return nil, "", &fault{code: failed, message: "The " + s.noun() + " could not be downloaded.", cause: err}
	}
	res, err := l.client.Do(req)
	if err != nil {
		return nil, "", &fault{code: failed, message: "The " + s.noun() + " could not be downloaded.", cause: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, "", &fault{code: failed, message: fmt.Sprintf("The %s could not be downloaded: its server answered with status %d.", s.noun(), res.StatusCode)}
	}
	if res.ContentLength > maxBytes {
		return nil, "", s.tooLarge()
	}
	raw, err := io.ReadAll(io.LimitReader(&metered{src: res.Body, left: left}, maxBytes+1))
	if _, known := errors.AsType[*fault](err); err != nil && !known {
		err = &fault{code: failed, message: "The download of the " + s.noun() + " broke off.", cause: err}
	}
	name := path.Base(address.Path)
	if name == "." || name == "/" {
		name = ""
	}
	return raw, name, err
}

// metered takes what it reads from a budget.
type metered struct {
	src  io.Reader
	left *budget
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.src.Read(p)
	if over := m.left.take(n); over != nil {
		return 0, over
	}
	return n, err
}

func (s Source) tooLarge() error {
	return &fault{code: s.code(codeTooLarge, codeFileLarge), message: fmt.Sprintf("The %s is larger than %d MiB.", s.noun(), maxBytes>>20)}
}

const (
	plainType = "text/plain"
	pdfType   = "application/pdf"
)

// sniff tells what content is from its first bytes; nobody is asked. Empty is
// nothing that a model takes.
func sniff(raw []byte) string {
	switch kind := http.DetectContentType(raw); {
	case kind == "image/png" || kind == "image/jpeg" || kind == "image/gif" || kind == "image/webp" || kind == pdfType:
		return kind
	case len(raw) > 0 && utf8.Valid(raw) && bytes.IndexByte(raw, 0) < 0:
		return plainType
	default:
		return ""
	}
}

// accepts refuses content that is not of the source's kind.
func (s Source) accepts(kind string, size int) error {
	image := strings.HasPrefix(kind, "image/")
	switch {
	case size > maxBytes:
		return s.tooLarge()
	case s.Kind == Image && size == 0:
		return &fault{code: codeImageEmpty, message: "The image is empty."}
	case s.Kind == Image && !image:
		return &fault{code: codeImageType, message: "The image is none of png, jpeg, gif and webp."}
	case s.Kind == File && size == 0:
		return &fault{code: codeFile, message: "The file is empty."}
	case s.Kind == File && image:
		return &fault{code: codeUnsupported, message: "The file is an image: send it as one."}
	case s.Kind == File && kind == "":
		return &fault{code: codeUnsupported, message: "The file is neither a PDF document nor text in UTF-8."}
	default:
		return nil
	}
}
