package responses

import (
	"bytes"
	"context"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/gateway"
)

// ChatRecord is a chat completion as it is kept.
type ChatRecord struct {
	ID        string
	Owner     Owner
	Model     string // its public name
	Metadata  []byte // a JSON object
	Messages  []byte // what the model was given, a JSON array
	Object    []byte // the answer, without metadata
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
}

// KeepChat makes the call keep its answer with its receipt, and returns the
// sink that the call is to run with in place of out. What the caller sees is
// not changed. Metadata is the caller's; a fault in it is a *Problem.
func (s *Service) KeepChat(from Caller, call *gateway.Call, model string, metadata []byte, out gateway.Sink) (gateway.Sink, error) {
	if err := checkMetadata(gjson.ParseBytes(metadata)); err != nil {
		return nil, err
	}
	k := &chatCopy{Sink: out, store: s.deps.Store, rec: ChatRecord{
		ID: "chatcmpl-" + from.RequestID, Owner: from.Owner(), Model: model,
		Metadata: []byte("{}"), Messages: bytes.Clone(call.Prompt[1]), CreatedAt: s.deps.Now(),
	}}
	if len(metadata) > 0 {
		k.rec.Metadata = bytes.Clone(metadata)
	}
	if days := from.Principal.Plan.RetentionDays; days > 0 {
		k.rec.ExpiresAt = k.rec.CreatedAt.AddDate(0, 0, days)
	}
	call.Ended, call.Effect = k.ended, k.effect
	return k, nil
}

// chatCopy is what passes on an answer and takes it down.
type chatCopy struct {
	gateway.Sink

	store  ChatStore
	rec    ChatRecord
	answer chatAnswer
}

// ChatStore keeps chat completions.
type ChatStore interface {
	// SaveChat returns the statements that keep a completion, for the
	// transaction of its receipt. Content is sealed before it returns.
	SaveChat(ctx context.Context, r *ChatRecord) (func(*pgx.Batch), error)
}

// Send passes whole events on, or one document.
func (k *chatCopy) Send(ctx context.Context, p []byte) error {
	for rest := p; ; {
		event, after, whole := bytes.Cut(rest, []byte("\n\n"))
		if !whole { // a document, which ended is given
			return k.Sink.Send(ctx, p)
		}
		if data, ok := bytes.CutPrefix(event, []byte("data: ")); ok && len(data) > 0 && data[0] == '{' {
			k.answer.chunk(gjson.ParseBytes(data))
		}
		rest = after
	}
}

var chatID = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)

// ended takes the answer in its final form.
func (k *chatCopy) ended(document, usage []byte) {
	if k.rec.Object = bytes.Clone(document); document == nil {
		k.rec.Object = k.answer.object(usage)
	}
	if id := gjson.GetBytes(k.rec.Object, "id").Str; chatID.MatchString(id) {
		k.rec.ID = id
	}
}

// effect keeps a whole answer, and nothing of one that broke off.
func (k *chatCopy) effect(ctx context.Context, failure *gateway.Error) (func(*pgx.Batch), error) {
	if failure != nil || k.rec.Object == nil {
		return nil, nil //nolint:nilnil,nilerr // no statements are no error, and the failure is the exchange's
	}
	return k.store.SaveChat(ctx, &k.rec)
}
