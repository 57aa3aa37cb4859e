package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/api/inference"
	"weir/gateway/replay"
)

// Replays keeps answers under keys of their callers'. A *replay.Store is one.
type Replays interface {
	Claim(ctx context.Context, a *replay.Asked) (replay.Outcome, replay.Answer, error)
	Keep(ctx context.Context, a *replay.Asked, mediaType string, body []byte) error
	// KeepWith keeps in the transaction that there was an answer; it may follow.
	KeepWith(ctx context.Context, tx pgx.Tx, a *replay.Asked) error
	Drop(ctx context.Context, a *replay.Asked) error
}

const (
	headerOnce     = "Idempotency-Key"
	headerReplayed = "Idempotency-Replayed"
	headerOriginal = "X-Weir-Original-Request"

	maxOnceKey  = 255
	maxKept     = 1 << 20 // bytes of an answer
	endOfClaims = 5 * time.Second
)

// errReplayed ends a request that was answered with what is kept.
var errReplayed = errors.New("answered from what is kept")

// once is a request that is to be run once.
type once struct {
	asked   replay.Asked
	claimed bool
	ordered bool // it goes on without its caller, and is kept as such: it must not be run again
	answer  *recorder
}

// onceOnly is a route whose requests may come with a key of the caller's own: one
// that comes again is not run again.
func (s *Server) onceOnly(run func(*exchange) error) func(*exchange) error {
	return func(x *exchange) error { return s.runOnce(x, run) }
}

// runOnce claims the request's key, if it has one, when the body has been read,
// and keeps what it is answered with when it has succeeded.
func (s *Server) runOnce(x *exchange, run func(*exchange) error) error {
	key, err := onceKey(x.Request().Header)
	if err != nil {
		return err
	}
	if key == "" || s.replays == nil {
		return run(x)
	}
	x.once = &once{asked: replay.Asked{Tenant: x.principal.Tenant, Project: x.principal.Project, Key: key, Request: x.id}}
	failed := true // also by a panic
	defer func() { s.endClaim(x, failed) }()
	err = run(x)
	failed = err != nil
	if errors.Is(err, errReplayed) {
		return nil
	}
	return err
}

// readBody reads the request's body, and claims its key where it has one.
func (s *Server) readBody(x *exchange) (*body, error) {
	b, err := s.bodies.read(x.w, x.Request(), s.now())
	if err != nil || x.once == nil {
		return b, err
	}
	if err := s.claim(x, b.bytes); err != nil {
		b.release()
		return nil, err
	}
	return b, nil
}

func (s *Server) claim(x *exchange, body []byte) error {
	o := x.once
	sum := sha256.New()
	_, _ = sum.Write([]byte(x.route + "\n")) // a hash takes everything
	_, _ = sum.Write(body)
	sum.Sum(o.asked.Print[:0])
	outcome, found, err := s.replays.Claim(x.Request().Context(), &o.asked)
	if err != nil {
		return because(answersUnavailable, err)
	}
	switch outcome {
	case replay.Claimed:
		o.claimed, o.answer = true, &recorder{ResponseWriter: x.w}
		x.w = o.answer
		return nil
	case replay.Done:
		s.answerAgain(x, found)
		return errReplayed
	case replay.Other:
		return because(keyReused, nil)
	case replay.Running:
		return because(keyInUse, nil)
	case replay.Lost:
		return because(answerLost, nil)
	case replay.Bare:
		return because(answerNotKept, nil)
	default:
		return because(answersUnavailable, errors.New("unknown outcome "+string(outcome)))
	}
}

// answerAgain answers with what was kept.
func (s *Server) answerAgain(x *exchange, a replay.Answer) {
	h := x.w.Header()
	h.Set(headerType, a.Type)
	h.Set(headerCache, "no-store")
	h.Set(headerReplayed, "true")
	h.Set(headerOriginal, a.Request)
	h.Set(headerLength, strconv.Itoa(len(a.Body)))
	s.setProcessing(x)
	x.commit(http.StatusOK)
	_, _ = x.w.Write(a.Body) // whether the caller still listens changes nothing
}

// keepOrder keeps, in the transaction in which a request is made one that goes on
// without its caller, that it is not to be run again: who runs it has another
// request's id, by which nobody would find it if this replica died. The answer may
// follow.
func (s *Server) keepOrder(x *exchange) func(context.Context, pgx.Tx) error {
	o := x.once
	if o == nil || !o.claimed {
		return nil
	}
	return func(ctx context.Context, tx pgx.Tx) error { return s.replays.KeepWith(ctx, tx, &o.asked) }
}

// order notes that the request goes on without its caller.
func (o *once) order() {
	if o != nil {
		o.ordered = o.claimed
	}
}

// endClaim keeps the answer of a request that has succeeded, and gives the key
// of another back. A tenant whose content is not kept anywhere has kept that
// there was an answer; so has one whose answer is too long or lacks its end, or
// went on without its caller.
func (s *Server) endClaim(x *exchange, failed bool) {
	o := x.once
	if !o.claimed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.Request().Context()), endOfClaims)
	defer cancel()
	var err error
	switch {
	case failed && !o.ordered:
		err = s.replays.Drop(ctx, &o.asked)
	case failed || !o.answer.whole() || x.principal.Plan.RetentionDays == 0:
		err = s.replays.Keep(ctx, &o.asked, "", nil)
	default:
		err = s.replays.Keep(ctx, &o.asked, o.answer.Header().Get(headerType), o.answer.body.Bytes())
	}
	if err != nil {
		s.log.WarnContext(ctx, "answer not kept for its key", "request_id", x.id, "error", err)
	}
}

// onceKey reads the caller's key.
func onceKey(h http.Header) (string, error) {
	values := h.Values(headerOnce)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	sound := len(values) == 1 && key != "" && len(key) <= maxOnceKey
	for i := range len(key) {
		sound = sound && key[i] > ' ' && key[i] <= '~'
	}
	if !sound {
		return "", &inference.Problem{
			Code: "invalid_value", Param: headerOnce,
			Message: "The header Idempotency-Key must be given once, with 1 to 255 printable ASCII characters and no spaces.",
		}
	}
	return key, nil
}

// recorder notes what is written through it, up to a bound.
type recorder struct {
	http.ResponseWriter

	body bytes.Buffer
	long bool
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	switch {
	case r.long:
	case r.body.Len()+len(p) > maxKept:
		r.long, r.body = true, bytes.Buffer{}
	default:
		_, _ = r.body.Write(p) // never fails
	}
	return r.ResponseWriter.Write(p)
}

// whole reports whether the answer is there from its beginning to its end. A
// request can succeed without: what was made is paid for, also where the caller
// left before the last of it, and then nothing more is written.
func (r *recorder) whole() bool {
	switch h := r.Header(); {
	case r.long:
		return false
	case strings.HasPrefix(h.Get(headerType), streamType):
		return bytes.HasSuffix(r.body.Bytes(), []byte("data: [DONE]\n\n"))
	default:
		return h.Get(headerLength) == strconv.Itoa(r.body.Len())
	}
}

// Unwrap gives http.ResponseController what it needs.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
