package llmd

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"weir/scheduler"
)

func TestAMemberIsJudged(t *testing.T) {
	t.Parallel()
	var (
		serving    = findingOf(healthpb.HealthCheckResponse_SERVING, nil)
		notServing = findingOf(healthpb.HealthCheckResponse_NOT_SERVING, nil)
		gone       = findingOf(0, status.Error(codes.Unavailable, "connection refused"))
		silent     = findingOf(0, status.Error(codes.DeadlineExceeded, "slow"))
		noService  = findingOf(0, status.Error(codes.Unimplemented, "unknown service"))
		unknown    = findingOf(0, status.Error(codes.NotFound, "unknown service"))

		broken  = status.Error(codes.Unavailable, "transport is closing")
		garbage = errors.New("no destination in the answer")
		left    = status.Error(codes.Canceled, "context canceled")
		stops   = &scheduler.Refusal{Reason: scheduler.ShuttingDown}
	)
	for name, test := range map[string]struct {
		events []any // findings, errors of streams (nil of a good one), times that pass
		down   bool
	}{
		"nothing is known of it: it may be used":    {nil, false},
		"it refuses connections":                    {[]any{gone}, true},
		"it says that it doesn't serve":             {[]any{notServing}, true},
		"it knows no such service":                  {[]any{unknown}, true},
		"it serves no health":                       {[]any{noService}, false},
		"one probe was slow":                        {[]any{silent}, false},
		"two probes were slow":                      {[]any{silent, silent}, true},
		"a slow one, a good one and a slow one":     {[]any{silent, serving, silent}, false},
		"its stream broke":                          {[]any{serving, broken}, true},
		"its stream broke, wrapped":                 {[]any{fmt.Errorf("receive: %w", broken)}, true},
		"it is about to stop":                       {[]any{stops}, true},
		"callers left":                              {[]any{left, left, left, left}, false},
		"one answer was garbage":                    {[]any{garbage, garbage}, false},
		"three in a row were garbage":               {[]any{garbage, garbage, garbage}, true},
		"garbage with good answers between":         {[]any{garbage, garbage, nil, garbage}, false},
		"one good probe is not enough to come back": {[]any{gone, serving}, true},
		"two are":                            {[]any{gone, serving, serving}, false},
		"two in a row":                       {[]any{gone, serving, gone, serving}, true},
		"who fails at once again needs four": {[]any{gone, serving, serving, broken, serving, serving, serving}, true},
		"and not five":                       {[]any{gone, serving, serving, broken, serving, serving, serving, serving}, false},
		"who fails again after long is as who failed first":  {[]any{gone, serving, serving, time.Minute, broken, serving, serving}, false},
		"errors of streams from before don't keep it longer": {[]any{gone, broken, serving, broken, serving, serving}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, now := &member{needed: goodProbes}, time.Unix(1_800_000_000, 0)
			for _, e := range test.events {
				now = now.Add(time.Second)
				switch e := e.(type) {
				case finding:
					m.probed(e, now)
				case error:
					m.broke(e, now)
				case time.Duration:
					now = now.Add(e)
				default:
					m.strikes.Store(0)
				}
			}
			if m.down != test.down {
				t.Errorf("down is %v (%s), want %v", m.down, m.fault, test.down)
			}
			if m.down && m.fault == "" {
				t.Error("nobody knows why")
			}
		})
	}
}

func TestTheFirstThatAnswersIsUsed(t *testing.T) {
	t.Parallel()
	up, down, coming := &member{}, &member{down: true}, &member{down: true, good: 1}
	for name, test := range map[string]struct {
		members []*member
		want    int
	}{
		"the first":                                {[]*member{up, up}, 0},
		"the standby of one that is down":          {[]*member{down, up}, 1},
		"the standby while the first is coming":    {[]*member{coming, up}, 1},
		"one that is coming, where nobody else is": {[]*member{down, coming}, 1},
		"nobody": {[]*member{down, down}, -1},
	} {
		if got := best(test.members); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
