package main

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestEnginesCountWhatAPromptFinds(t *testing.T) {
	t.Parallel()
	s := newEngineSet(0)
	long := strings.Repeat("x", 3*engineBlock+10)
	other := long[:engineBlock] + "y" + long[engineBlock+1:]
	steps := []struct {
		name                     string
		engine                   int
		salt, prompt             string
		blocks, hits, attainable int
	}{
		{"nothing is known at first", 0, "a", long, 3, 0, 0},
		{"the same engine finds it", 0, "a", long, 3, 3, 3},
		{"another engine doesn't, though it could be had", 1, "a", long, 3, 0, 3},
		{"another salt is another prompt", 0, "b", long, 3, 0, 0},
		{"what differs in its second block agrees in the first", 0, "a", other, 3, 1, 1},
	}
	for _, tt := range steps {
		before := s.stats
		blocks, hits := s.begin(tt.engine, chainOf(tt.salt, []byte(tt.prompt)))
		if got := s.stats.Attainable - before.Attainable; blocks != tt.blocks || hits != tt.hits || got != tt.attainable {
			t.Errorf("%s: %d blocks, %d hits, %d attainable", tt.name, blocks, hits, got)
		}
		s.end(tt.engine, true)
	}
	if s.stats.Requests != len(steps) || s.stats.ByEngine[1] != 1 || s.stats.Abandoned != 0 {
		t.Errorf("%+v", s.stats)
	}
}

func TestACrowdReadsWhatItsEnginesSay(t *testing.T) {
	t.Parallel()
	engines := newEngineSet(time.Millisecond)
	srv := httptest.NewServer(engines)
	t.Cleanup(srv.Close)
	c := crowd{agents: 3, turns: 3, tool: time.Millisecond, client: newClient()}
	c.target = func(agent int) *target { return &target{name: directName, url: fmt.Sprintf("%s/e/%d", srv.URL, agent)} }
	turns, err := c.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(turns) != 9 || engines.stats.Requests != 9 || engines.stats.Abandoned != 0 {
		t.Fatalf("%d turns, %+v", len(turns), engines.stats)
	}
	for _, turn := range turns {
		if turn.begun < agentWait || turn.engine < turn.begun+(agentChunks-2)*time.Millisecond || turn.total < turn.engine || turn.first < turn.begun || turn.first > turn.total {
			t.Errorf("%+v", turn)
		}
	}
	// Each session's own turns, and the instructions that all share.
	if hits, all := engines.stats.Hits, engines.stats.Blocks; float64(hits)/float64(all) < .55 {
		t.Errorf("%d of %d blocks were found", hits, all)
	}
	out := crowded{agents: 3, turns: turns, prefix: engines.stats, wall: time.Second}
	r := agentReport{command: "x", direct: out, through: out, receipts: 9, flood: floodedRun{alone: []paced{{first: 10}}, loud: []paced{{first: 20}}, offered: 2, finished: 2}}
	for _, want := range []string{"9 turns in 1s", "| errors | 0 | 0 | yes |", "| 2.00x | ≤ 1.5x | **no** |", "2 of 2"} {
		if text := r.text(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestAWrongAnswerToAnAgentIsNoAnswer(t *testing.T) {
	t.Parallel()
	piece := `data: {"choices":[{"delta":{"content":"x"}}]}` + "\n\n"
	mark := `data: {"choices":[{"delta":{"content":"@5@"}}]}` + "\n\n"
	end := `data: {"usage":{"prompt_tokens":1}}` + "\n\ndata: [DONE]\n\n"
	good := mark + strings.Repeat(piece, agentChunks-2) + mark + end
	tests := []struct{ name, answer, want string }{
		{"whole", good, ""},
		{"cut", strings.TrimSuffix(good, "data: [DONE]\n\n"), "without usage or end"},
		{"without usage", strings.Replace(good, "usage", "used", 1), "without usage or end"},
		{"a piece short", strings.Replace(good, piece, "", 1), "24 of 25"},
		{"without the engine's time", strings.Replace(good, "@5@", "x", 1), "names 1 times"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got turn
			err := got.read([]byte(tt.answer))
			if tt.want == "" {
				if err != nil || got.engine != 5 {
					t.Errorf("%v, %+v", err, got)
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
