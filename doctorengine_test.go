package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/scheduler/enginesim"
)

// doctorEngine runs `weir doctor engine`.
func doctorEngine(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := rootCommand()
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"doctor", "engine"}, args...))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func engineWith(t *testing.T, faults string) string {
	t.Helper()
	engine := enginesim.New(enginesim.Config{Models: []string{"m"}, TTFT: time.Millisecond, ITL: time.Millisecond, ContextLength: 4096})
	if err := engine.SetFault(faults, 0); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	t.Cleanup(engine.Close)
	return server.URL
}

func TestDoctorEngineReportsByItsSchema(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("docs/engine-report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		url   string
		fails bool
	}{
		"one that conforms":     {engineWith(t, ""), false},
		"one that doesn't":      {engineWith(t, "ignore-salt"), true},
		"one that is not there": {"http://127.0.0.1:1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := doctorEngine(t, tt.url+"/v1/", "--json")
			if errors.Is(err, errBreaks) != tt.fails || err != nil && !tt.fails {
				t.Errorf("it ends with %v", err)
			}
			report, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(report); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
	text, err := doctorEngine(t, engineWith(t, "ignore-salt"), "--only", "salt_isolation")
	if !errors.Is(err, errBreaks) || !strings.Contains(text, "fail         salt_isolation") || !strings.Contains(text, "-> give its pool to one tenant") || strings.Contains(text, "cancel_stream") {
		t.Errorf("%v, and the table is\n%s", err, text)
	}
}

// A server that sends its callers elsewhere must not have the key follow them.
func TestDoctorEngineKeepsItsKeyToTheServerThatWasNamed(t *testing.T) {
	var strangers atomic.Int64
	stranger := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strangers.Add(1) }))
	t.Cleanup(stranger.Close)
	var keys atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer secret-of-the-engine" {
			keys.Add(1)
		}
		http.Redirect(w, r, stranger.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	t.Setenv("ENGINE_KEY", "secret-of-the-engine")
	text, err := doctorEngine(t, server.URL, "--key-env", "ENGINE_KEY")
	if !errors.Is(err, errBreaks) || keys.Load() == 0 || strangers.Load() != 0 || strings.Contains(text, "secret-of") {
		t.Errorf("%v; %d requests with the key, %d elsewhere:\n%s", err, keys.Load(), strangers.Load(), text)
	}
}

func TestDoctorEngineRefusesWhatItCantAsk(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no URL":                {[]string{"10.0.0.1:8000"}, "URL"},
		"a URL with a password": {[]string{"http://me:hidden@10.0.0.1:8000"}, "--key-env"},
		"a check that is none":  {[]string{"http://127.0.0.1:1", "--only", "speed"}, "salt_isolation"},
		"a variable without":    {[]string{"http://127.0.0.1:1", "--key-env", "WEIR_TEST_NO_SUCH_KEY"}, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := doctorEngine(t, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("it says %v", err)
			}
		})
	}
}
