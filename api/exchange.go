package api

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"weir/tenants"
)

// exchange is one request and its answer, as the handlers see it.
type exchange struct {
	echo.Context

	w          http.ResponseWriter // the connection's own: the router's swallows errors of Flush
	id         string
	receivedAt time.Time
	route      string // the pattern; empty: none matched
	principal  *tenants.Principal

	once      *once // it came with a key of the caller's; nil: it didn't
	ran       bool  // the gateway had it, and has logged it
	committed bool  // the answer's status has left
	status    int
}

// commit sends the status.
func (x *exchange) commit(status int) {
	x.committed, x.status = true, status
	x.w.WriteHeader(status)
}

// fail answers with an error.
func (x *exchange) fail(f failure) {
	x.committed, x.status = true, f.status
	_ = f.write(x.w) // whether the caller still listens changes nothing
}

// newRequestID returns "req_" and 128 random bits.
func newRequestID() string { return "req_" + strings.ToLower(rand.Text()) }

// edge surrounds every request, also those without a route: it names the
// request, answers errors and panics, and counts.
func (s *Server) edge(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		x := &exchange{Context: c, w: c.Response().Writer, id: newRequestID(), receivedAt: s.now()}
		h := x.w.Header()
		h.Set(headerRequestID, x.id)
		h.Set(headerVersion, apiDate)
		defer s.metrics.count(x)
		defer s.recoverPanic(x)
		var err error = echo.ErrMethodNotAllowed
		if x.Request().Method != http.MethodOptions { // no cross-origin access: nothing to ask about
			err = next(x)
		}
		if err != nil {
			s.fail(x, err)
		}
		return nil
	}
}

// fail answers an error, unless an answer has left: then the sink was told.
func (s *Server) fail(x *exchange, err error) {
	f := s.failureOf(err)
	if !x.ran {
		level := slog.LevelDebug // strangers must not fill the log
		if f.status >= http.StatusInternalServerError {
			level = slog.LevelError
		}
		s.log.Log(x.Request().Context(), level, "request refused",
			"request_id", x.id, "route", x.route, "cause", f.cause, "status", f.status, "error", err)
	}
	if !x.committed {
		s.setProcessing(x)
		x.fail(f)
	}
}

// recoverPanic turns a panic into an answer or, in the middle of one, cuts the
// connection: an answer that just ends could pass for a whole one.
func (s *Server) recoverPanic(x *exchange) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	s.log.Error("request panicked", "request_id", x.id, "route", x.route, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if x.committed {
		panic(http.ErrAbortHandler)
	}
	x.fail(s.failureOf(errPanic))
}

var errPanic = errors.New("panic")

// setProcessing says how long the request took until its answer began.
func (s *Server) setProcessing(x *exchange) {
	x.w.Header().Set(headerProcessing, strconv.FormatInt(s.now().Sub(x.receivedAt).Milliseconds(), 10))
}

// json answers with a document.
func (x *exchange) json(body []byte) error {
	h := x.w.Header()
	h.Set(headerType, jsonType)
	h.Set(headerCache, "no-store")
	h.Set(headerLength, strconv.Itoa(len(body)))
	x.commit(http.StatusOK)
	_, err := x.w.Write(body)
	return err
}
