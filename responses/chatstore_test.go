package responses_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/tidwall/gjson"

	"weir/responses"
)

// keepChat stores a completion as the settle writer would.
func (h *house) keepChat(tb testing.TB, r *responses.ChatRecord) {
	tb.Helper()
	effect, err := h.store.SaveChat(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	var b pgx.Batch
	effect(&b)
	if err := h.db.Worker.SendBatch(tb.Context(), &b).Close(); err != nil {
		tb.Fatal(err)
	}
}

func chatRecord(o responses.Owner, id, model, metadata string, at time.Time) *responses.ChatRecord {
	return &responses.ChatRecord{
		ID: id, Owner: o, Model: model, Metadata: []byte(metadata), CreatedAt: at,
		Messages: []byte(`[{"role":"user","content":"the secret word"},{"role":"user","content":[{"type":"text","text":"and parts"}]}]`),
		Object:   []byte(`{"id":"` + id + `","object":"chat.completion"}`),
	}
}

func TestKeptChatsAreListedByAgeAndFilter(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	begin := time.Now().Add(-time.Hour)
	for i := range 5 {
		h.keepChat(t, chatRecord(h.mine, fmt.Sprint("chat-", i), []string{"m", "n"}[i%2], fmt.Sprintf(`{"n":"%d","all":"x"}`, i), begin.Add(time.Duration(i)*time.Second)))
	}
	h.keepChat(t, chatRecord(h.sibling, "chat-sibling", "m", `{"all":"x"}`, begin))
	h.keepChat(t, chatRecord(h.stranger, "chat-0", "m", `{"all":"x"}`, begin))
	old := chatRecord(h.mine, "chat-old", "m", `{"all":"x"}`, begin)
	old.ExpiresAt = begin
	h.keepChat(t, old)

	all := map[string]string{"all": "x"}
	for _, tt := range []struct {
		name   string
		filter responses.ChatFilter
		page   responses.Page
		want   string
		more   bool
	}{
		{name: "the oldest first", filter: responses.ChatFilter{Metadata: all}, page: responses.Page{Asc: true}, want: `["chat-0","chat-1","chat-2","chat-3","chat-4"]`},
		{name: "a page", page: responses.Page{Asc: true, Limit: 2, After: "chat-1"}, want: `["chat-2","chat-3"]`, more: true},
		{name: "the last page", page: responses.Page{Limit: 2, After: "chat-2"}, want: `["chat-1","chat-0"]`},
		{name: "of a model", filter: responses.ChatFilter{Model: "n"}, page: responses.Page{Asc: true}, want: `["chat-1","chat-3"]`},
		{name: "with metadata", filter: responses.ChatFilter{Metadata: map[string]string{"n": "3", "all": "x"}}, want: `["chat-3"]`},
		{name: "none", filter: responses.ChatFilter{Metadata: map[string]string{"n": `3"}`}}, want: `[]`},
	} {
		list, err := h.fresh.Chats(t.Context(), h.mine, tt.filter, tt.page)
		if got := gjson.GetBytes(list, "data.#.id").Raw; err != nil || got != tt.want || gjson.GetBytes(list, "has_more").Bool() != tt.more {
			t.Errorf("%s: %s, %v; want %s", tt.name, list, err, tt.want)
		}
	}
	for _, cursor := range []string{"chat-sibling", "chat-old", "nothing"} {
		_, err := h.store.Chats(t.Context(), h.mine, responses.ChatFilter{}, responses.Page{After: cursor})
		if _, ok := errors.AsType[*responses.Problem](err); !ok {
			t.Errorf("a page after %s: %v", cursor, err)
		}
	}
}

func TestAKeptChatIsItsProjectsAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.keepChat(t, chatRecord(h.mine, "chat-1", "m", `{"a":"b"}`, time.Now()))
	ctx := t.Context()
	for name, who := range map[string]responses.Owner{"a sibling": h.sibling, "a stranger": h.stranger} {
		_, shown := h.store.Chat(ctx, who, "chat-1")
		_, labelled := h.store.LabelChat(ctx, who, "chat-1", []byte(`{}`))
		_, read := h.store.ChatMessages(ctx, who, "chat-1")
		for what, err := range map[string]error{"shown": shown, "labelled": labelled, "read": read, "deleted": h.store.DeleteChat(ctx, who, "chat-1")} {
			if !errors.Is(err, responses.ErrNotFound) {
				t.Errorf("%s by %s: %v", what, name, err)
			}
		}
	}
	object, err := h.store.LabelChat(ctx, h.mine, "chat-1", []byte(`{"c":"d"}`))
	if err != nil || gjson.GetBytes(object, "metadata").Raw != `{"c": "d"}` {
		t.Errorf("labelled %s, %v", object, err)
	}
	if object, err = h.fresh.Chat(ctx, h.mine, "chat-1"); err != nil || gjson.GetBytes(object, "metadata.c").Str != "d" || gjson.GetBytes(object, "object").Str != "chat.completion" {
		t.Errorf("shown %s, %v", object, err)
	}
	messages, err := h.store.ChatMessages(ctx, h.mine, "chat-1")
	if err != nil || len(messages) != 2 || gjson.GetBytes(messages[0].JSON, "content").Str != "the secret word" ||
		gjson.GetBytes(messages[1].JSON, "content").Raw != "null" || gjson.GetBytes(messages[1].JSON, "content_parts.0.text").Str != "and parts" || messages[1].ID != "chat-1-1" {
		t.Errorf("messages %s, %v", messages, err)
	}
	var stored []byte
	if err := h.db.Admin(t).QueryRow(ctx, `SELECT messages || object FROM chat_completions`).Scan(&stored); err != nil || bytes.Contains(stored, []byte("secret word")) {
		t.Errorf("content lies open in the database (%v)", err)
	}
	if err := h.store.DeleteChat(ctx, h.mine, "chat-1"); err != nil {
		t.Error(err)
	}
	if _, err := h.store.Chat(ctx, h.mine, "chat-1"); !errors.Is(err, responses.ErrNotFound) {
		t.Errorf("deleted, but there: %v", err)
	}
}
