package media

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"weir/tenants"
	"weir/tenants/notify"
)

const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// pictures serves what a test fetches, on loopback, and returns a loader that
// may reach it.
func pictures(t *testing.T, log io.Writer, handler http.HandlerFunc) (*Loader, string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
	dialer := notify.NewDialer(notify.Config{Allow: []netip.Prefix{netip.PrefixFrom(at.Addr(), 32)}, Ports: []uint16{at.Port()}})
	return NewLoader(slog.New(slog.NewTextHandler(log, nil)), notify.NewClient(dialer, notify.ClientConfig{Redirects: 3}), newExtractor(t)), server.URL
}

func png(t *testing.T) []byte {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(pixel)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func serve(t *testing.T) http.HandlerFunc {
	t.Helper()
	image := png(t)
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cat.png", "/lying.pdf":
			w.Header().Set("Content-Type", "application/pdf") // nobody asks
			_, _ = w.Write(image)
		case "/redirect":
			http.Redirect(w, r, "/cat.png", http.StatusFound)
		case "/inside":
			http.Redirect(w, r, "http://10.0.0.1:"+r.Host[strings.Index(r.Host, ":")+1:], http.StatusFound)
		case "/page.html":
			_, _ = io.WriteString(w, "<!doctype html><title>no cat</title>")
		case "/empty":
		case "/promised":
			w.Header().Set("Content-Length", fmt.Sprint(maxBytes+1))
			_, _ = w.Write(image)
		case "/large":
			_, _ = w.Write(image)
			_, _ = io.CopyN(w, endless{}, maxBytes)
		case "/half":
			_, _ = w.Write(append(image, make([]byte, 17<<20)...))
		case "/cut":
			w.Header().Set("Content-Length", "5000")
			_, _ = w.Write(image)
		case "/report.pdf":
			_, _ = w.Write(document("BT /F1 12 Tf 72 700 Td (Sales rose.) Tj ET"))
		default:
			w.WriteHeader(http.StatusGone)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestSourcesBecomeWhatModelsTake(t *testing.T) {
	t.Parallel()
	l, at := pictures(t, io.Discard, serve(t))
	pdf := document("BT /F1 12 Tf 72 700 Td (Hello) Tj ET")
	encoded := base64.StdEncoding.EncodeToString(pdf)
	for _, tt := range []struct {
		name   string
		source Source
		want   Loaded
	}{
		{"an image at an address", Source{Kind: Image, URL: at + "/cat.png"}, Loaded{URL: "data:image/png;base64," + pixel, Name: "cat.png"}},
		{"an image behind a redirect", Source{Kind: Image, URL: at + "/redirect"}, Loaded{URL: "data:image/png;base64," + pixel, Name: "redirect"}},
		{"an image as data is what it is, whatever it says", Source{Kind: Image, URL: "data:image/jpeg;base64," + pixel}, Loaded{URL: "data:image/png;base64," + pixel}},
		{"a document at an address", Source{Kind: File, URL: at + "/report.pdf", Text: true}, Loaded{Name: "report.pdf", Text: "Sales rose."}},
		{"a document with a name", Source{Kind: File, URL: at + "/report.pdf", Name: "q3.pdf", Text: true}, Loaded{Name: "q3.pdf", Text: "Sales rose."}},
		{"a document as data", Source{Kind: File, URL: "data:application/pdf;base64," + encoded, Text: true}, Loaded{Text: "Hello"}},
		{"a document as plain base64", Source{Kind: File, URL: encoded, Text: true}, Loaded{Text: "Hello"}},
		{"a document for a model that reads it", Source{Kind: File, URL: encoded}, Loaded{URL: "data:application/pdf;base64," + encoded}},
		{"text in UTF-8", Source{Kind: File, URL: "data:text/markdown;base64," + base64.StdEncoding.EncodeToString([]byte("# Grüße")), Text: true}, Loaded{Text: "# Grüße"}},
		{"text, percent-encoded", Source{Kind: File, URL: "data:text/plain,a%20b", Text: true}, Loaded{Text: "a b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := l.Load(t.Context(), "ten_a", []Source{tt.source})
			if err != nil || len(got) != 1 || got[0] != tt.want {
				t.Errorf("%.80v, %v", got, err)
			}
		})
	}
}

func TestFaultsAreNamedAsClientsKnowThem(t *testing.T) {
	t.Parallel()
	l, at := pictures(t, io.Discard, serve(t))
	elsewhere := strings.Replace(at, "127.0.0.1", "127.0.0.2", 1)
	for _, tt := range []struct {
		name   string
		source Source
		code   string
	}{
		{"a status", Source{Kind: Image, URL: at + "/gone"}, "failed_to_download_image"},
		{"an address inside", Source{Kind: Image, URL: elsewhere + "/cat.png"}, "failed_to_download_image"},
		{"a redirect inside", Source{Kind: Image, URL: at + "/inside"}, "failed_to_download_image"},
		{"metadata", Source{Kind: Image, URL: "http://169.254.169.254/latest/meta-data/"}, "failed_to_download_image"},
		{"a download that breaks off", Source{Kind: Image, URL: at + "/cut"}, "failed_to_download_image"},
		{"credentials", Source{Kind: Image, URL: "http://a:b@example.com/"}, "invalid_image_url"},
		{"another scheme", Source{Kind: Image, URL: "file:///etc/passwd"}, "invalid_image_url"},
		{"no URL at all", Source{Kind: Image, URL: pixel}, "invalid_image_url"},
		{"not a URL", Source{Kind: Image, URL: "http://[::1"}, "invalid_image_url"},
		{"a page", Source{Kind: Image, URL: at + "/page.html"}, "unsupported_image_media_type"},
		{"a document as an image", Source{Kind: Image, URL: at + "/report.pdf"}, "unsupported_image_media_type"},
		{"nothing", Source{Kind: Image, URL: at + "/empty"}, "empty_image_file"},
		{"too large, as promised", Source{Kind: Image, URL: at + "/promised"}, "image_too_large"},
		{"too large, as sent", Source{Kind: Image, URL: at + "/large"}, "image_too_large"},
		{"broken base64", Source{Kind: Image, URL: "data:image/png;base64,%%%"}, "invalid_base64_image"},
		{"a file's status", Source{Kind: File, URL: at + "/gone"}, "failed_to_download_file"},
		{"a file that is an image", Source{Kind: File, URL: at + "/lying.pdf"}, "unsupported_file"},
		{"a file too large", Source{Kind: File, URL: at + "/promised"}, "file_too_large"},
		{"a broken document", Source{Kind: File, URL: "data:application/pdf,%25PDF-1.4", Text: true}, "invalid_file"},
		{"a document without text", Source{Kind: File, URL: base64.StdEncoding.EncodeToString(document("0 0 1 1 re")), Text: true}, "unsupported_file"},
		{"bytes", Source{Kind: File, URL: "data:,%00%01", Text: true}, "unsupported_file"},
		{"neither a URL nor base64", Source{Kind: File, URL: "report.pdf"}, "invalid_file"},
		{"an empty file", Source{Kind: File, URL: "data:,"}, "invalid_file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := l.Load(t.Context(), "ten_a", []Source{{Kind: File, URL: "data:,fine"}, tt.source})
			fault, ok := errors.AsType[*Problem](err)
			if !ok || fault.Code != tt.code || fault.Source != 1 {
				t.Fatalf("%#v", err)
			}
			for _, secret := range []string{"127.0.0", "10.0.0", "169.254", "refused", "a:b@"} {
				if strings.Contains(fault.Message, secret) {
					t.Errorf("the caller is told of %s: %s", secret, fault.Message)
				}
			}
		})
	}
}

func TestARequestsMediaAreBoundedTogether(t *testing.T) {
	t.Parallel()
	l, at := pictures(t, io.Discard, serve(t))
	half := Source{Kind: Image, URL: at + "/half"}
	if _, err := l.Load(t.Context(), "ten_a", []Source{half}); err != nil {
		t.Fatal(err)
	}
	_, err := l.Load(t.Context(), "ten_a", []Source{half, half})
	if fault, ok := errors.AsType[*Problem](err); !ok || fault.Code != codeTooLarge {
		t.Errorf("twice 17 MiB: %v", err)
	}
	_, err = l.Load(t.Context(), "ten_a", make([]Source, maxSources+1))
	if fault, ok := errors.AsType[*Problem](err); !ok || fault.Code != "array_above_max_length" {
		t.Errorf("too many: %v", err)
	}
	if len(l.loads) != 0 || l.all != 0 {
		t.Errorf("left behind: %v, %d", l.loads, l.all)
	}
}

func TestOneTenantCannotTakeAllPlaces(t *testing.T) {
	t.Parallel()
	arrived, open := make(chan struct{}), make(chan struct{})
	l, at := pictures(t, io.Discard, func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-open
	})
	ended := make(chan error)
	load := func(ctx context.Context, tenant tenants.ID) {
		_, err := l.Load(ctx, tenant, []Source{{Kind: Image, URL: at}})
		ended <- err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxOwn {
		go load(ctx, "ten_a")
		<-arrived
	}
	_, err := l.Load(t.Context(), "ten_a", []Source{{Kind: Image, URL: at}})
	if busy, ok := errors.AsType[*BusyError](err); !ok || !busy.Own {
		t.Errorf("one more of the same tenant: %v", err)
	}
	for i := range maxLoads - maxOwn {
		go load(ctx, tenants.ID(fmt.Sprint("ten_", i)))
		<-arrived
	}
	_, err = l.Load(t.Context(), "ten_z", []Source{{Kind: Image, URL: at}})
	if busy, ok := errors.AsType[*BusyError](err); !ok || busy.Own {
		t.Errorf("one more of another: %v", err)
	}
	cancel()
	for range maxLoads {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left: %v", err)
		}
	}
	close(open)
	if l.all != 0 || len(l.loads) != 0 {
		t.Errorf("places are left taken: %d, %v", l.all, l.loads)
	}
}

func TestOperatorsSeeWhatWasRefusedButNoAddressOfACaller(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	l, at := pictures(t, &log, serve(t))
	for _, url := range []string{at + "/inside?token=secret", "http://10.0.0.1/?token=secret", "ftp://example.com/?token=secret"} {
		_, _ = l.Load(t.Context(), "ten_a", []Source{{Kind: Image, URL: url}})
	}
	if got := log.String(); strings.Count(got, "address of media refused") != 2 || !strings.Contains(got, "tenant=ten_a") || strings.Contains(got, "secret") {
		t.Errorf("log:\n%s", got)
	}
}

func TestNothingIsFetchedWithoutAClient(t *testing.T) {
	t.Parallel()
	l := NewLoader(slog.New(slog.DiscardHandler), nil, nil)
	for _, s := range []Source{{Kind: Image, URL: "https://example.com/cat.png"}, {Kind: File, URL: base64.StdEncoding.EncodeToString(document("")), Text: true}} {
		_, err := l.Load(t.Context(), "ten_a", []Source{s})
		if _, ok := errors.AsType[*Problem](err); !ok {
			t.Errorf("%v: %v", s.Kind, err)
		}
	}
}
