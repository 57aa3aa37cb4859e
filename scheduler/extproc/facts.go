package extproc

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"weir/scheduler"
)

// Headers that a gateway of ours adds for a `weir scheduler`. FactsVersion is
// always there: it tells that the rest is meant, that bodies of the response
// phase are Reports, and that the outcome comes in the trailers.
const (
	FactsVersion     = "x-weir-facts"
	BandHeader       = "x-weir-band"
	weightHeader     = "x-weir-weight"
	sessionHeader    = "x-weir-session"
	turnHeader       = "x-weir-turn"
	affinityHeader   = "x-weir-affinity"
	modelHeader      = "x-weir-model"
	saltHeader       = "x-weir-salt"
	inputHeader      = "x-weir-input-tokens"
	outputHeader     = "x-weir-output-tokens"
	cachedHeader     = "x-weir-cached-tokens"
	waitedHeader     = "x-weir-waited-us"
	ttftHeader       = "x-weir-ttft-us"
	reservedHeader   = "x-weir-reserved"
	ttlHeader        = "x-weir-ttl-us"
	streamsHeader    = "x-weir-streams"
	excludeHeader    = "x-weir-exclude"
	revisionHeader   = "x-weir-revision"
	resultHeader     = "x-weir-result"
	reachedHeader    = "x-weir-reached"
	currentVersion   = "1"
	maxExclude       = 64
	maxFact          = 1 << 10
	maxFactTokens    = 1 << 40
	maxFactsDuration = 365 * 24 * time.Hour
)

// Facts is what a `weir scheduler` is told of a request beside what any
// Endpoint Picker is told: a scheduler.Request without its id, fairness ID,
// body and prompt.
type Facts struct {
	Band         int
	Weight       int
	Session      string
	Turn         int
	Affinity     string
	Model        string
	CacheSalt    string
	InputTokens  int
	OutputTokens int
	Retry        bool          // not the first attempt
	Waited       time.Duration // since the first attempt began to wait, with Retry: a span, so that two clocks need not agree
	TTFT         time.Duration
	Reserved     int
	TTL          time.Duration
	Streams      bool
	Exclude      []string
	Revision     string
}

// FactsOf takes the facts of a request; now is the sender's clock.
func FactsOf(r *scheduler.Request, now time.Time) Facts {
	f := Facts{
		Band: r.Flow.Band, Weight: r.Weight, Session: r.Session, Turn: r.Turn, Affinity: r.Affinity,
		Model: r.Model, CacheSalt: r.CacheSalt, InputTokens: r.InputTokens, OutputTokens: r.OutputTokens,
		TTFT: r.TTFT, Reserved: r.Reserved, TTL: r.TTL, Streams: r.Streams, Exclude: r.Exclude,
		Revision: r.Revision,
	}
	if !r.QueuedAt.IsZero() {
		f.Retry, f.Waited = true, max(0, now.Sub(r.QueuedAt))
	}
	return f
}

// Request gives the facts to a request; now is the receiver's clock. The rest
// of r stays as it is.
func (f *Facts) Request(r *scheduler.Request, now time.Time) {
	r.Flow.Band, r.Weight, r.Session, r.Turn, r.Affinity = f.Band, f.Weight, f.Session, f.Turn, f.Affinity
	r.Model, r.CacheSalt, r.InputTokens, r.OutputTokens = f.Model, f.CacheSalt, f.InputTokens, f.OutputTokens
	r.TTFT, r.Reserved, r.TTL, r.Streams, r.Exclude, r.Revision = f.TTFT, f.Reserved, f.TTL, f.Streams, f.Exclude, f.Revision
	r.QueuedAt = time.Time{}
	if f.Retry {
		r.QueuedAt = now.Add(-f.Waited)
	}
}

// Encode adds the facts to the headers of a request. Durations lose what is
// below a microsecond, and of Exclude no more than 64 go; what is negative and
// can't be goes as nothing. Text is escaped: a header carries no line ends.
func (f *Facts) Encode(h *Headers) {
	h.Add(FactsVersion, currentVersion)
	h.Add(BandHeader, strconv.Itoa(f.Band))
	addInt(h, weightHeader, f.Weight)
	addText(h, sessionHeader, f.Session)
	addInt(h, turnHeader, f.Turn)
	addText(h, affinityHeader, f.Affinity)
	addText(h, modelHeader, f.Model)
	addText(h, saltHeader, f.CacheSalt)
	addInt(h, inputHeader, f.InputTokens)
	addInt(h, outputHeader, f.OutputTokens)
	if f.Retry {
		h.Add(waitedHeader, strconv.FormatInt(clamp(f.Waited).Microseconds(), 10))
	}
	addSpan(h, ttftHeader, f.TTFT)
	addInt(h, reservedHeader, f.Reserved)
	addSpan(h, ttlHeader, f.TTL)
	if f.Streams {
		h.Add(streamsHeader, "1")
	}
	addText(h, revisionHeader, f.Revision)
	for i, e := range f.Exclude {
		if i == maxExclude {
			break
		}
		addText(h, excludeHeader, e)
	}
}

func addInt(h *Headers, name string, n int) {
	if n > 0 {
		h.Add(name, strconv.Itoa(min(n, maxFactTokens)))
	}
}

// addSpan keeps the sign: a negative time limit means not to wait.
func addSpan(h *Headers, name string, d time.Duration) {
	if us := clamp(d).Microseconds(); us != 0 {
		h.Add(name, strconv.FormatInt(us, 10))
	} else if d < 0 {
		h.Add(name, "-1")
	}
}

func clamp(d time.Duration) time.Duration { return min(max(d, -maxFactsDuration), maxFactsDuration) }

// addText leaves out what is too long to be read again: such a request has no
// session, and is not refused for it.
func addText(h *Headers, name, text string) {
	if escaped := url.QueryEscape(text); len(escaped) <= maxFact {
		h.Add(name, escaped)
	}
}

// DecodeFacts reads the facts of a request. ok is false when there are none:
// the sender is no gateway of ours. An error names the header that is wrong.
func DecodeFacts(m *corev3.HeaderMap) (f Facts, ok bool, err error) {
	for _, v := range m.GetHeaders() {
		name := strings.ToLower(v.GetKey())
		if !strings.HasPrefix(name, "x-weir-") {
			continue
		}
		value := Value(v)
		if len(value) > maxFact {
			return Facts{}, ok, fmt.Errorf("header %s has %d bytes, more than %d", name, len(value), maxFact)
		}
		if name == FactsVersion {
			if value != currentVersion {
				return Facts{}, true, fmt.Errorf("header %s: version %q is not %s", name, value, currentVersion)
			}
			ok = true
			continue
		}
		if err := f.decode(name, value); err != nil {
			return Facts{}, ok, fmt.Errorf("header %s: %w", name, err)
		}
	}
	if !ok {
		return Facts{}, false, nil
	}
	return f, true, nil
}

// decode reads one header. Unknown ones are a newer gateway's: ignored.
func (f *Facts) decode(name, value string) (err error) {
	switch name {
	case BandHeader:
		f.Band, err = strconv.Atoi(value)
	case weightHeader:
		f.Weight, err = count(value)
	case sessionHeader:
		f.Session, err = url.QueryUnescape(value)
	case turnHeader:
		f.Turn, err = count(value)
	case affinityHeader:
		f.Affinity, err = url.QueryUnescape(value)
	case modelHeader:
		f.Model, err = url.QueryUnescape(value)
	case saltHeader:
		f.CacheSalt, err = url.QueryUnescape(value)
	case inputHeader:
		f.InputTokens, err = count(value)
	case outputHeader:
		f.OutputTokens, err = count(value)
	case waitedHeader:
		f.Retry = true
		f.Waited, err = span(value)
		f.Waited = max(0, f.Waited)
	case ttftHeader:
		f.TTFT, err = span(value)
	case reservedHeader:
		f.Reserved, err = count(value)
	case ttlHeader:
		f.TTL, err = span(value)
	case streamsHeader:
		f.Streams = value == "1"
	case revisionHeader:
		f.Revision, err = url.QueryUnescape(value)
	case excludeHeader:
		if len(f.Exclude) == maxExclude {
			return nil
		}
		var id string
		id, err = url.QueryUnescape(value)
		f.Exclude = append(f.Exclude, id)
	default:
	}
	return err
}

// count reads a number that can't be negative, and no number of tokens that a
// sum of a few could overflow.
func count(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err == nil && (n < 0 || n > maxFactTokens) {
		return 0, fmt.Errorf("%d is out of range", n)
	}
	return n, err
}

func span(value string) (time.Duration, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if limit := maxFactsDuration.Microseconds(); err == nil && (n > limit || n < -limit) {
		return 0, fmt.Errorf("%d us is out of range", n)
	}
	return time.Duration(n) * time.Microsecond, err
}
