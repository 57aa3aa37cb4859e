package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/labstack/echo/v4"

	"weir/api/inference"
	"weir/gateway"
	"weir/tenants"
)

// causesIn lists the constants of type Cause that a package's file declares.
func causesIn(t *testing.T, file, typeName string) (causes []gateway.Cause) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range f.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || v.Type == nil || len(v.Values) == 0 || typeText(v.Type) != typeName {
				continue
			}
			lit, ok := v.Values[0].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s: a cause that is no literal", file)
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			causes = append(causes, gateway.Cause(text))
		}
	}
	return causes
}

func typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return typeText(e.X) + "." + e.Sel.Name
	default:
		return ""
	}
}

func TestEveryCauseHasARow(t *testing.T) {
	t.Parallel()
	table := answers()
	causes := append(causesIn(t, filepath.Join("..", "gateway", "cause.go"), "Cause"), causesIn(t, "errors.go", "gateway.Cause")...)
	if len(causes) < 40 {
		t.Fatalf("only %d causes were found", len(causes))
	}
	known := map[gateway.Cause]bool{gateway.Success: true}
	for _, c := range causes {
		known[c] = true
		if _, ok := table[c]; !ok && c != gateway.Success {
			t.Errorf("%s has no row", c)
		}
	}
	for c := range table {
		if !known[c] {
			t.Errorf("the row %s belongs to no cause", c)
		}
	}
}

// The rules that hold for the whole table: who is to blame decides the status.
func TestRowsKeepTheRules(t *testing.T) {
	t.Parallel()
	want := map[gateway.Cause]string{
		badRequest: "400 invalid_request_error -", noKey: "401 invalid_request_error -", twoKeys: "400 invalid_request_error -",
		badKey: "401 invalid_request_error invalid_api_key", tooManyBadKeys: "429 requests rate_limit_exceeded",
		wrongAddress: "403 invalid_request_error insufficient_permissions", tenantSuspended: "403 invalid_request_error organization_suspended",
		missingScope: "403 invalid_request_error insufficient_permissions", keysUnavailable: "503 service_unavailable_error -",
		unknownURL: "404 invalid_request_error unknown_url", wrongMethod: "405 invalid_request_error method_not_supported",
		bodyTooLarge: "413 invalid_request_error request_too_large", bodyCorrupt: "400 invalid_request_error -",
		bodyIncomplete: "400 invalid_request_error -", bodySlow: "408 invalid_request_error timeout",
		wrongEncoding: "415 invalid_request_error unsupported_content_encoding", wrongType: "415 invalid_request_error unsupported_content_type",
		keyReused: "422 invalid_request_error idempotency_key_reused", keyInUse: "409 invalid_request_error idempotency_key_in_use",
		answerNotKept: "409 invalid_request_error idempotency_answer_not_kept final", answerLost: "409 invalid_request_error idempotency_answer_lost final",
		answersUnavailable: "503 service_unavailable_error -",
		objectNotFound:     "404 invalid_request_error -",
		noRoom:             "503 service_unavailable_error server_is_overloaded",

		gateway.Unpriced: "503 service_unavailable_error -", gateway.InsufficientQuota: "402 insufficient_quota insufficient_quota final", gateway.MoneyHeld: "402 insufficient_quota in_flight_budget_exhausted", //nolint:dupword // type and code are alike
		gateway.MoneyUnknown: "503 service_unavailable_error billing_unavailable", gateway.BudgetExhausted: "402 insufficient_quota budget_exhausted final",
		gateway.ModelNotFound:  "404 invalid_request_error model_not_found",
		gateway.WrongOperation: "400 invalid_request_error unsupported_value", gateway.NotCounted: "400 invalid_request_error unsupported_value", gateway.SuspectRequest: "400 invalid_request_error request_suspected",
		gateway.TokenRateLimited: "429 tokens rate_limit_exceeded",
		gateway.RateLimited:      "429 requests rate_limit_exceeded", gateway.TooManyAtOnce: "429 requests rate_limit_exceeded",
		gateway.LimitsUnknown: "503 service_unavailable_error -", gateway.FlowFull: "429 requests rate_limit_exceeded",
		gateway.BandFull: "503 service_unavailable_error server_is_overloaded", gateway.PoolFull: "503 service_unavailable_error server_is_overloaded",
		gateway.PlaceForbidden: "403 invalid_request_error insufficient_permissions",
		gateway.Shed:           "503 service_unavailable_error server_is_overloaded",
		gateway.QueueTimeout:   "503 service_unavailable_error server_is_overloaded", gateway.NoEndpoint: "503 service_unavailable_error server_is_overloaded",
		gateway.ShuttingDown: "503 service_unavailable_error server_is_overloaded", gateway.ConnectFailed: "502 server_error -",
		gateway.UpstreamReset: "502 server_error -", gateway.UpstreamStatus: "502 server_error -",
		gateway.UpstreamBusy: "503 service_unavailable_error server_is_overloaded", gateway.UpstreamRefused: "400 invalid_request_error -",
		gateway.ContextTooLong: "400 invalid_request_error context_length_exceeded", gateway.UpstreamInvalid: "502 server_error -",
		gateway.FirstByteLimit: "504 server_error timeout", gateway.IdleLimit: "504 server_error timeout",
		gateway.TotalLimit: "504 server_error timeout final", gateway.UpstreamDied: "502 server_error -",
		gateway.Evicted: "503 service_unavailable_error server_is_overloaded", gateway.KeyRevoked: "401 invalid_request_error invalid_api_key",
		gateway.AccessLost: "403 invalid_request_error insufficient_permissions",
		gateway.ClientGone: "499 invalid_request_error -", gateway.StoreDown: "503 service_unavailable_error -",
		gateway.Internal: "500 server_error -",
	}
	for cause, a := range answers() {
		t.Run(string(cause), func(t *testing.T) {
			t.Parallel()
			code := a.code
			if code == "" {
				code = "-"
			}
			got := fmt.Sprint(a.status, " ", a.kind, " ", code)
			if a.final {
				got += " final"
			}
			if got != want[cause] {
				t.Errorf("want %s, got %s", want[cause], got)
			}
			if a.message == "" || !strings.HasSuffix(strings.TrimSuffix(a.message, "'"), ".") {
				t.Errorf("its sentence: %q", a.message)
			}
			if retry := a.status == 429 || a.status == 503; retry && (!a.wait || a.final) {
				t.Error("it does not say when to try again")
			}
			if a.status == http.StatusUnauthorized && cause != noKey && a.code != "invalid_api_key" {
				t.Error("401 is for bad keys alone")
			}
		})
	}
}

func TestEveryRowIsAValidAnswer(t *testing.T) {
	t.Parallel()
	schema := schemaOf(t, "Error")
	h := newHouse(t, nil, Config{})
	for cause := range answers() {
		t.Run(string(cause), func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			f := h.server.failureOf(&gateway.Error{Cause: cause, Err: errors.New("secret detail")})
			if err := f.write(w); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(w.Body.String(), "secret detail") {
				t.Error("the operator's cause is shown")
			}
			validate(t, schema, w.Body.Bytes())
		})
	}
}

func TestErrorsBringTheirOwnWords(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	w := httptest.NewRecorder()
	err := fmt.Errorf("run: %w", &gateway.Error{
		Cause: gateway.RateLimited, Message: "Too fast: 60 requests per minute.", Param: "model", RetryAfter: 1234567 * time.Microsecond,
		Limit: gateway.LimitState{Requests: 60, ResetRequests: 61 * time.Second},
	})
	if err := h.server.failureOf(err).write(w); err != nil {
		t.Fatal(err)
	}
	if got, want := w.Body.String(), `{"error":{"message":"Too fast: 60 requests per minute.","type":"requests","param":"model","code":"rate_limit_exceeded"}}`; got != want {
		t.Errorf("want %s, got %s", want, got)
	}
	for name, want := range map[string]string{
		"Retry-After": "2", "Retry-After-Ms": "1235", "X-Ratelimit-Limit-Requests": "60",
		"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "1m1s", "X-Should-Retry": "",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: want %q, got %q", name, want, got)
		}
	}
	final := httptest.NewRecorder()
	if err := h.server.failureOf(&gateway.Error{Cause: gateway.TotalLimit, Band: "batch", QueueTime: 1500 * time.Millisecond}).write(final); err != nil {
		t.Fatal(err)
	}
	if final.Header().Get("X-Weir-Band") != "batch" || final.Header().Get("X-Weir-Queue-Ms") != "1500" || w.Header()["X-Weir-Queue-Ms"] != nil {
		t.Errorf("where it waited is not told, or told of one that never did: %v, %v", final.Header(), w.Header())
	}
	if final.Header().Get("X-Should-Retry") != "false" || final.Header().Get("Retry-After") != "" {
		t.Errorf("a hopeless retry is not discouraged: %v", final.Header())
	}
}

func TestForeignErrorsFindTheirCause(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	tests := []struct {
		name string
		err  error
		want gateway.Cause
	}{
		{"a problem of the body", fmt.Errorf("parse: %w", &inference.Problem{Code: "x", Message: "m"}), badRequest},
		{"a cause that we don't know", &gateway.Error{Cause: "news"}, "news"},
		{"an unknown key", tenants.ErrUnknownKey, badKey},
		{"a revoked key", fmt.Errorf("guard: %w", tenants.ErrRevoked), badKey},
		{"an address", tenants.ErrAddress, wrongAddress},
		{"a suspended tenant", tenants.ErrSuspended, tenantSuspended},
		{"no database", tenants.ErrUnavailable, keysUnavailable},
		{"a caller who left", context.Canceled, gateway.ClientGone},
		{"no route", echo.ErrNotFound, unknownURL},
		{"no method", echo.ErrMethodNotAllowed, wrongMethod},
		{"anything else", errors.New("x"), gateway.Internal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := h.server.failureOf(tt.err)
			if f.cause != tt.want || f.status < 400 {
				t.Errorf("want %s, got %s (%d)", tt.want, f.cause, f.status)
			}
		})
	}
}

func description(t *testing.T) *openapi3.T {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("inference", "openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func schemaOf(t *testing.T, name string) *openapi3.Schema {
	t.Helper()
	return description(t).Components.Schemas[name].Value
}
