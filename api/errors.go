package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"weir/api/inference"
	"weir/gateway"
	"weir/gateway/media"
	"weir/responses"
	"weir/tenants"
)

// The causes that this package adds to the gateway's: why a request ended
// before there was an exchange.
const (
	badRequest      gateway.Cause = "bad_request" // an *inference.Problem
	noKey           gateway.Cause = "no_key"
	twoKeys         gateway.Cause = "two_keys"
	badKey          gateway.Cause = "bad_key"
	tooManyBadKeys  gateway.Cause = "too_many_bad_keys"
	wrongAddress    gateway.Cause = "wrong_address"
	tenantSuspended gateway.Cause = "tenant_suspended"
	missingScope    gateway.Cause = "missing_scope"
	keysUnavailable gateway.Cause = "keys_unavailable"
	unknownURL      gateway.Cause = "unknown_url"
	wrongMethod     gateway.Cause = "wrong_method"
	bodyTooLarge    gateway.Cause = "body_too_large"
	bodyCorrupt     gateway.Cause = "body_corrupt"
	bodyIncomplete  gateway.Cause = "body_incomplete"
	bodySlow        gateway.Cause = "body_slow"
	wrongEncoding   gateway.Cause = "wrong_encoding"
	wrongType       gateway.Cause = "wrong_content_type"
	noRoom          gateway.Cause = "no_room" // for more bodies in memory
	objectNotFound  gateway.Cause = "object_not_found"

	keyReused          gateway.Cause = "idempotency_key_reused"
	keyInUse           gateway.Cause = "idempotency_key_in_use"
	answerNotKept      gateway.Cause = "idempotency_answer_not_kept"
	answerLost         gateway.Cause = "idempotency_answer_lost"
	answersUnavailable gateway.Cause = "idempotency_unavailable"
)

// answer is what a cause looks like from outside.
type answer struct {
	status  int
	kind    string // error.type
	code    string // error.code; empty: null
	param   string // error.param where the error names none; empty: null
	message string // where the error has none for the caller
	final   bool   // trying again can't help, though the status suggests it
	wait    bool   // say when to try again, if only by a guess
}

const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
	unavailable    = "service_unavailable_error"
	requestRate    = "requests"
	tokenRate      = "tokens"

	overloaded = "server_is_overloaded"
	rateLimit  = "rate_limit_exceeded"

	insufficientQuota = "insufficient_quota"
	noAccess          = "insufficient_permissions"
)

// clientClosed is the status that logs show for a caller who left.
const clientClosed = 499

// answers is the one table from causes to what the caller sees. Its other
// half, what a cause means to the exchange, is the gateway's.
func answers() map[gateway.Cause]answer {
	return map[gateway.Cause]answer{
		badRequest:      {status: 400, kind: invalidRequest, message: "The request is not valid."},
		noKey:           {status: 401, kind: invalidRequest, message: "No API key was given. Send yours in an Authorization header: 'Authorization: Bearer YOUR_KEY'."},
		twoKeys:         {status: 400, kind: invalidRequest, message: "More than one API key was given. Send the key either as 'Authorization: Bearer' or as 'x-api-key'."},
		badKey:          {status: 401, kind: invalidRequest, code: "invalid_api_key", message: "The API key is not valid."},
		tooManyBadKeys:  {status: 429, kind: requestRate, code: rateLimit, message: "Too many requests with invalid API keys came from this network address.", wait: true},
		wrongAddress:    {status: 403, kind: invalidRequest, code: noAccess, message: "The API key may not be used from this network address."},
		tenantSuspended: {status: 403, kind: invalidRequest, code: "organization_suspended", message: "The organization of this API key is suspended."},
		missingScope:    {status: 403, kind: invalidRequest, code: noAccess, message: "The API key has no permission for this operation."},
		keysUnavailable: {status: 503, kind: unavailable, message: "API keys can't be checked at the moment.", wait: true},
		unknownURL:      {status: 404, kind: invalidRequest, code: "unknown_url", message: "There is nothing at this URL."},
		wrongMethod:     {status: 405, kind: invalidRequest, code: "method_not_supported", message: "This URL doesn't support the method."},
		bodyTooLarge:    {status: 413, kind: invalidRequest, code: "request_too_large", message: "The body of the request is too large."},
		bodyCorrupt:     {status: 400, kind: invalidRequest, message: "The body of the request could not be decoded as its Content-Encoding says."},
		bodyIncomplete:  {status: 400, kind: invalidRequest, message: "The body of the request ended early."},
		bodySlow:        {status: 408, kind: invalidRequest, code: "timeout", message: "The body of the request took too long to arrive."},
		wrongEncoding:   {status: 415, kind: invalidRequest, code: "unsupported_content_encoding", message: "The Content-Encoding is not supported. Use gzip, zstd, deflate or none."},
		wrongType:       {status: 415, kind: invalidRequest, code: "unsupported_content_type", message: "The Content-Type must be application/json."},
		noRoom:          {status: 503, kind: unavailable, code: overloaded, message: "The service is handling too many large requests at the moment.", wait: true},

		keyReused:          {status: 422, kind: invalidRequest, code: "idempotency_key_reused", param: headerOnce, message: "The Idempotency-Key was used for another request within the last 24 hours."},
		keyInUse:           {status: 409, kind: invalidRequest, code: "idempotency_key_in_use", param: headerOnce, message: "A request with this Idempotency-Key is under way. Its answer will be here when it has ended.", wait: true},
		answerNotKept:      {status: 409, kind: invalidRequest, code: "idempotency_answer_not_kept", param: headerOnce, message: "A request with this Idempotency-Key has been answered already, and its answer was not kept.", final: true},
		answerLost:         {status: 409, kind: invalidRequest, code: "idempotency_answer_lost", param: headerOnce, message: "A request with this Idempotency-Key was run, and its answer was lost with the server that ran it.", final: true},
		answersUnavailable: {status: 503, kind: unavailable, message: "Requests with an Idempotency-Key can't be taken at the moment.", wait: true},

		objectNotFound: {status: 404, kind: invalidRequest, message: "There is no such object."},

		gateway.ModelNotFound:     {status: 404, kind: invalidRequest, code: "model_not_found", param: "model", message: "The model does not exist, or you have no access to it."},
		gateway.WrongOperation:    {status: 400, kind: invalidRequest, code: "unsupported_value", param: "model", message: "The model does not serve this operation."},
		gateway.NotCounted:        {status: 400, kind: invalidRequest, code: "unsupported_value", param: "model", message: "The model's server can't count tokens."},
		gateway.PlaceForbidden:    {status: 403, kind: invalidRequest, code: noAccess, param: "model", message: "Your plan allows none of the places in which this model is served."},
		gateway.SuspectRequest:    {status: 400, kind: invalidRequest, code: "request_suspected", message: "A model server failed on this very request a moment ago. The same request is not taken for a while."},
		gateway.RateLimited:       {status: 429, kind: requestRate, code: rateLimit, message: "The limit of requests per minute is reached.", wait: true},
		gateway.TokenRateLimited:  {status: 429, kind: tokenRate, code: rateLimit, message: "The limit of tokens per minute is reached.", wait: true},
		gateway.TooManyAtOnce:     {status: 429, kind: requestRate, code: rateLimit, message: "The limit of requests at the same time is reached.", wait: true},
		gateway.LimitsUnknown:     {status: 503, kind: unavailable, message: "Limits can't be checked at the moment.", wait: true},
		gateway.Unpriced:          {status: 503, kind: unavailable, message: "The model has no price at the moment and can't be used.", wait: true},
		gateway.InsufficientQuota: {status: 402, kind: insufficientQuota, code: insufficientQuota, message: "The credit doesn't cover the request. Please check your plan and billing details.", final: true},
		gateway.MoneyHeld:         {status: 402, kind: insufficientQuota, code: string(gateway.MoneyHeld), message: "The credit for the request is held by requests that are under way.", wait: true},
		gateway.MoneyUnknown:      {status: 503, kind: unavailable, code: "billing_unavailable", message: "The credit for the request can't be checked at the moment.", wait: true},
		gateway.BudgetExhausted:   {status: 402, kind: insufficientQuota, code: "budget_exhausted", message: "The credit was used up in the middle of the answer.", final: true},
		gateway.FlowFull:          {status: 429, kind: requestRate, code: rateLimit, message: "Too many of your requests are waiting already.", wait: true},
		gateway.BandFull:          {status: 503, kind: unavailable, code: overloaded, message: "The model is at capacity for this service tier.", wait: true},
		gateway.PoolFull:          {status: 503, kind: unavailable, code: overloaded, message: "The model is at capacity.", wait: true},
		gateway.Shed:              {status: 503, kind: unavailable, code: overloaded, message: "The model is nearly at capacity, and this service tier gives way first.", wait: true},
		gateway.QueueTimeout:      {status: 503, kind: unavailable, code: overloaded, message: "The model was at capacity for as long as the request may wait.", wait: true},
		gateway.NoEndpoint:        {status: 503, kind: unavailable, code: overloaded, message: "The model is not available at the moment.", wait: true},
		gateway.ShuttingDown:      {status: 503, kind: unavailable, code: overloaded, message: "This server is about to stop. Please try again.", wait: true},
		gateway.ConnectFailed:     {status: 502, kind: serverError, message: "The model server could not be reached.", wait: true},
		gateway.UpstreamReset:     {status: 502, kind: serverError, message: "The model server broke off the request.", wait: true},
		gateway.UpstreamStatus:    {status: 502, kind: serverError, message: "The model server failed.", wait: true},
		gateway.UpstreamBusy:      {status: 503, kind: unavailable, code: overloaded, message: "The model is at capacity.", wait: true},
		gateway.UpstreamRefused:   {status: 400, kind: invalidRequest, message: "The model server refused the request."},
		gateway.ContextTooLong:    {status: 400, kind: invalidRequest, code: "context_length_exceeded", message: "The request is longer than the model's context."},
		gateway.UpstreamInvalid:   {status: 502, kind: serverError, message: "The model server gave an answer that can't be used.", wait: true},
		gateway.FirstByteLimit:    {status: 504, kind: serverError, code: "timeout", message: "The model server did not begin to answer in time.", wait: true},
		gateway.IdleLimit:         {status: 504, kind: serverError, code: "timeout", message: "The model server stopped in the middle of its answer.", wait: true},
		gateway.TotalLimit:        {status: 504, kind: serverError, code: "timeout", message: "The answer took longer than the model's time limit.", final: true},
		gateway.UpstreamDied:      {status: 502, kind: serverError, message: "The model server broke off its answer.", wait: true},
		gateway.Evicted:           {status: 503, kind: unavailable, code: overloaded, message: "The request gave way to others of higher priority.", wait: true},
		gateway.KeyRevoked:        {status: 401, kind: invalidRequest, code: "invalid_api_key", message: "The API key is not valid any more."},
		gateway.AccessLost:        {status: 403, kind: invalidRequest, code: noAccess, message: "The API key may not do this any more."},
		gateway.ClientGone:        {status: clientClosed, kind: invalidRequest, message: "The caller closed the connection."},
		gateway.StoreDown:         {status: 503, kind: unavailable, message: "The request could not be recorded and was not served.", wait: true},
		gateway.Internal:          {status: 500, kind: serverError, message: "Something went wrong on our side."},
	}
}

// failure is an error ready for the caller.
type failure struct {
	answer

	cause      gateway.Cause
	retryAfter time.Duration
	limit      gateway.LimitState
	band       string // in which it waited; empty: it never came that far
	queued     time.Duration
}

// failureOf finds the row of an error and puts in what the error itself knows.
func (s *Server) failureOf(err error) failure {
	if problem, ok := errors.AsType[*inference.Problem](err); ok {
		f := failure{answer: s.answers[badRequest], cause: badRequest}
		f.code, f.param, f.message = problem.Code, problem.Param, problem.Message
		return f
	}
	if problem, ok := errors.AsType[*responses.Problem](err); ok {
		f := failure{answer: s.answers[badRequest], cause: badRequest}
		f.code, f.param, f.message = problem.Code, problem.Param, problem.Message
		return f
	}
	e, ok := errors.AsType[*gateway.Error](err)
	if !ok {
		e = &gateway.Error{Cause: causeOf(err)}
	}
	row, known := s.answers[e.Cause]
	if !known {
		row = s.answers[gateway.Internal]
	}
	f := failure{answer: row, cause: e.Cause, retryAfter: e.RetryAfter, limit: e.Limit, band: e.Band, queued: e.QueueTime}
	if e.Message != "" {
		f.message = e.Message
	}
	if e.Param != "" {
		f.param = e.Param
	}
	if f.retryAfter <= 0 && f.wait {
		f.retryAfter = time.Second
	}
	return f
}

// causeOf classes the errors of others.
func causeOf(err error) gateway.Cause {
	httpError, _ := errors.AsType[*echo.HTTPError](err)
	busy, _ := errors.AsType[*media.BusyError](err)
	switch {
	case errors.Is(err, tenants.ErrBadKey):
		return badKey
	case errors.Is(err, tenants.ErrAddress):
		return wrongAddress
	case errors.Is(err, tenants.ErrSuspended):
		return tenantSuspended
	case errors.Is(err, tenants.ErrUnavailable):
		return keysUnavailable
	case busy != nil && busy.Own:
		return gateway.TooManyAtOnce
	case busy != nil:
		return noRoom
	case errors.Is(err, context.Canceled):
		return gateway.ClientGone
	case httpError != nil && httpError.Code == http.StatusNotFound:
		return unknownURL
	case httpError != nil && httpError.Code == http.StatusMethodNotAllowed:
		return wrongMethod
	default:
		return gateway.Internal
	}
}

// because is an error of this package's own.
func because(cause gateway.Cause, err error) error {
	return &gateway.Error{Cause: cause, Err: err}
}
