package enginesim

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

func (e *Engine) health(w http.ResponseWriter, _ *http.Request) {
	if !e.healthy() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (e *Engine) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"version": e.cfg.Version, "simulated": true})
}

func (e *Engine) load(w http.ResponseWriter, _ *http.Request) {
	s := e.Stats()
	writeJSON(w, http.StatusOK, map[string]int{"server_load": s.Running + s.Waiting})
}

func (e *Engine) listModels(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
		Root    string `json:"root"`
		MaxLen  int    `json:"max_model_len"`
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list"}
	for _, id := range e.cfg.Models {
		list.Data = append(list.Data, model{ID: id, Object: "model", OwnedBy: "enginesim", Root: e.cfg.Models[0], MaxLen: e.cfg.ContextLength})
	}
	writeJSON(w, http.StatusOK, list)
}

func readInto(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err == nil {
		err = decodeJSON(body, into)
	}
	if err == nil {
		return true
	}
	api, ok := errors.AsType[*apiError](err)
	if !ok {
		api = badRequest("", "%v", err)
	}
	api.write(w)
	return false
}

// tokenize answers vLLM's /tokenize, of a prompt or of chat messages.
func (e *Engine) tokenize(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model    string    `json:"model"`
		Prompt   *string   `json:"prompt"`
		Messages []message `json:"messages"`
		Tools    []tool    `json:"tools"`
	}
	if !readInto(w, r, &in) {
		return
	}
	ts := []token{}
	err := e.known(in.Model)
	switch {
	case err != nil:
	case in.Prompt != nil:
		ts = appendTokens(ts, *in.Prompt)
	case len(in.Messages) > 0:
		ts, err = render(in.Messages, in.Tools)
	default:
		err = badRequest("prompt", "Field required: prompt or messages")
	}
	if api, ok := errors.AsType[*apiError](err); ok {
		api.write(w)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"count": len(ts), "max_model_len": e.cfg.ContextLength, "tokens": ts, "token_strs": json.RawMessage("null"),
	})
}

func (e *Engine) detokenize(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Tokens []token `json:"tokens"`
	}
	if !readInto(w, r, &in) {
		return
	}
	var text []byte
	for _, t := range in.Tokens {
		text = appendPiece(text, t)
	}
	writeJSON(w, http.StatusOK, map[string]string{"prompt": string(text)})
}
