package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"weir/scheduler/pool"
)

func (s *server) health(ctx context.Context) Check {
	a, err := s.ask(ctx, "/health", nil)
	switch {
	case err != nil:
		return Check{Health, Fail, err.Error(), "start the server, or correct the URL (without /v1)"}
	case !a.ok():
		return Check{Health, Fail, "GET /health: " + a.says(), "wait until its model is loaded"}
	}
	return Check{Name: Health, Status: Pass, Found: "GET /health answers 200"}
}

// identify finds out which kind of engine it is: each tells its version at a
// place of its own.
func (s *server) identify(ctx context.Context) {
	defer func() { s.engine = cmp.Or(s.cfg.Engine, s.engine, unknown) }()
	for _, at := range []struct{ path, field, engine string }{
		{"/get_server_info", "version", sglang},
		{"/server_info", "version", sglang},
		{"/version", "version", vllm},
		{"/props", "build_info", llamaCPP},
	} {
		a, err := s.ask(ctx, at.path, nil)
		if err != nil || !a.ok() || a.get(at.field).Str == "" {
			continue
		}
		s.version, s.engine = a.get(at.field).Str, at.engine
		if a.get("simulated").Bool() {
			s.engine = sim
		}
		return
	}
}

// floor is the oldest version that has what can't be seen from outside, and
// what that is.
func floor(engine string) (version, why string) {
	switch engine {
	case vllm:
		return "0.9.0", "older ones have no cache_salt"
	case sglang:
		return "0.5.3", "older ones have no cache_salt"
	default:
		return "", ""
	}
}

func (s *server) checkVersion() Check {
	oldest, why := floor(s.engine)
	found := strings.TrimSpace(s.engine + " " + s.version)
	switch {
	case s.version == "":
		return Check{Version, Unknown, "it tells its version nowhere that is known", "name its kind with --engine"}
	case oldest == "":
		return Check{Name: Version, Status: Pass, Found: found + "; no version is known to be too old"}
	case !numbered(s.version):
		return Check{Version, Unknown, found + " is no release", "compare it yourself: the oldest is " + oldest + ", since " + why}
	case slices.Compare(numbers(s.version), numbers(oldest)) < 0:
		return Check{Version, Fail, found + " is older than " + oldest + ": " + why, "upgrade it"}
	}
	return Check{Name: Version, Status: Pass, Found: found + "; the oldest is " + oldest}
}

func numbered(version string) bool { return len(numbers(version)) >= 2 }

// numbers are those of a version such as v0.9.2rc1+cu128: 0, 9, 2.
func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(strings.TrimPrefix(version, "v"), ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		if all = append(all, n); digits != part {
			break
		}
	}
	return all
}

func (s *server) checkModels(ctx context.Context) Check {
	a, err := s.ask(ctx, "/v1/models", nil)
	if err != nil || !a.ok() {
		if s.model = s.cfg.Model; s.model == "" {
			return Check{Models, Fail, "GET /v1/models: " + failure(a, err), "name a model with --model"}
		}
		return Check{Models, Unknown, "GET /v1/models: " + failure(a, err), "without a list nobody sees that a model is gone"}
	}
	var ids []string
	for _, m := range a.get("data").Array() {
		ids = append(ids, m.Get("id").Str)
		if m.Get("id").Str == s.cfg.Model || s.cfg.Model == "" && len(ids) == 1 {
			s.context = int(cmp.Or(m.Get("max_model_len").Int(), m.Get("meta.n_ctx").Int()))
			s.model = m.Get("id").Str
		}
	}
	found := "it serves " + strings.Join(ids, ", ")
	switch {
	case len(ids) == 0:
		return Check{Models, Fail, "its list of models is empty", "load a model"}
	case s.model == "":
		return Check{Models, Fail, found + "; not " + s.cfg.Model, "serve it under that name, or correct --model"}
	}
	return Check{Name: Models, Status: Pass, Found: found}
}

// failure is what went wrong with a question.
func failure(a answer, err error) string {
	if err != nil {
		return err.Error()
	}
	return a.says()
}

func (s *server) checkMetrics(ctx context.Context) Check {
	a, err := s.ask(ctx, "/metrics", nil)
	if err != nil || !a.ok() {
		return Check{Metrics, Fail, "GET /metrics: " + failure(a, err), "switch them on (SGLang: --enable-metrics, llama.cpp: --metrics): the scheduler goes by its own count alone until then"}
	}
	names := s.metricNames()
	if names == "" { // either's will do
		names = vllm
		if bytes.Contains(a.body, []byte("\nsglang:")) {
			names = sglang
		}
	}
	missing, err := pool.MissingMetrics(bytes.NewReader(a.body), names)
	switch {
	case err != nil:
		return Check{Metrics, Fail, "GET /metrics: " + err.Error(), "the page is not Prometheus text"}
	case len(missing) > 0:
		return Check{Metrics, Fail, "nothing tells: " + strings.Join(missing, "; "), "the engine's version names them differently: report it"}
	}
	return Check{Name: Metrics, Status: Pass, Found: "all that the scheduler reads is there"}
}

func (s *server) checkTokenize(ctx context.Context) Check {
	const say = "Hello there."
	chat := fields{"model": s.model, "messages": []fields{{"role": "user", "content": say}}}
	if s.engine == llamaCPP {
		return s.tokenizeInSteps(ctx, chat)
	}
	a, err := s.ask(ctx, "/tokenize", chat)
	if err == nil && a.ok() && a.get("count").Int() > 0 {
		return Check{Name: Tokenize, Status: Pass, Found: fmt.Sprintf("/tokenize counts a chat: %d tokens", a.get("count").Int())}
	}
	const estimate = "none: who asks to count tokens is told that this model can't"
	plain, perr := s.ask(ctx, "/tokenize", fields{"model": s.model, "prompt": say})
	if perr == nil && plain.ok() {
		return Check{Tokenize, Unsupported, "/tokenize takes prompts but no chats: " + failure(a, err), estimate}
	}
	if err == nil && a.status == http.StatusNotFound {
		return Check{Tokenize, Unsupported, "it has no /tokenize", estimate}
	}
	return Check{Tokenize, Fail, "/tokenize: " + failure(a, err), "token counts can't be asked for"}
}

func (s *server) tokenizeInSteps(ctx context.Context, chat fields) Check {
	a, err := s.ask(ctx, "/apply-template", chat)
	if err != nil || !a.ok() || a.get("prompt").Str == "" {
		return Check{Tokenize, Fail, "/apply-template: " + failure(a, err), "token counts can't be asked for"}
	}
	a, err = s.ask(ctx, "/tokenize", fields{"content": a.get("prompt").Str, "add_special": true, "parse_special": true})
	n := a.get("tokens.#").Int()
	if err != nil || !a.ok() || n == 0 {
		return Check{Tokenize, Fail, "/tokenize: " + failure(a, err), "token counts can't be asked for"}
	}
	return Check{Name: Tokenize, Status: Pass, Found: fmt.Sprintf("/apply-template and /tokenize count a chat: %d tokens", n)}
}
