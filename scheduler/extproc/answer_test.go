package extproc_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

func decision(headers ...string) *extprocv3.ProcessingResponse {
	m := &extprocv3.HeaderMutation{}
	for i := 0; i < len(headers); i += 2 {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: headers[i], RawValue: []byte(headers[i+1])}})
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: m}},
	}}
}

func piece(body []byte, last bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body, EndOfStream: last},
			}},
		}},
	}}
}

// However a body is cut, what comes back is what was sent, or what replaced it.
func TestABodyComesBackHoweverItIsCut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sent := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "sent")
		came := sent
		if rapid.Bool().Draw(t, "changed") {
			came = append(bytes.Clone(sent[:rapid.IntRange(0, len(sent)).Draw(t, "kept")]), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "tail")...)
		}
		a := extproc.NewAnswer(sent)
		if err := a.Take(decision(extproc.Destination, "10.0.0.1:8000")); err != nil {
			t.Fatal(err)
		}
		size := rapid.IntRange(1, 100).Draw(t, "size")
		for b, last := range extproc.Chunks(came, size) {
			if err := a.Take(piece(bytes.Clone(b), last)); err != nil {
				t.Fatal(err)
			}
		}
		if !a.Done() || !bytes.Equal(a.Body(), came) {
			t.Fatalf("done %v, body %q, want %q", a.Done(), a.Body(), came)
		}
	})
}

func TestTheDestinationIsReadFromHeaderOrMetadata(t *testing.T) {
	t.Parallel()
	metadata := decision()
	metadata.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{
		"envoy.lb": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"x-gateway-destination-endpoint": structpb.NewStringValue("10.0.0.1:8000,10.0.0.2:8000"),
		}}),
	}}
	for name, c := range map[string]struct {
		m    *extprocv3.ProcessingResponse
		want string
		err  error
	}{
		"header":             {decision("X-Gateway-Destination-Endpoint", "10.0.0.1:8000, 10.0.0.2:8000,10.0.0.1:8000"), "10.0.0.1:8000 10.0.0.2:8000", nil},
		"metadata":           {metadata, "10.0.0.1:8000 10.0.0.2:8000", nil},
		"IPv6":               {decision(extproc.Destination, "[fd00::1]:8000"), "[fd00::1]:8000", nil},
		"none":               {decision(), "", extproc.ErrNoDestination},
		"commas":             {decision(extproc.Destination, ",,"), "", extproc.ErrNoDestination},
		"no port":            {decision(extproc.Destination, "10.0.0.1"), "", extproc.ErrGarbage},
		"port 0":             {decision(extproc.Destination, "10.0.0.1:0"), "", extproc.ErrGarbage},
		"a user":             {decision(extproc.Destination, "x@10.0.0.1:80"), "", extproc.ErrGarbage},
		"a path":             {decision(extproc.Destination, "10.0.0.1/x:80"), "", extproc.ErrGarbage},
		"a line end":         {decision(extproc.Destination, "10.0.0.1\r\nx:80"), "", extproc.ErrGarbage},
		"too many":           {decision(extproc.Destination, strings.Repeat("a:1,", 10)+"b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1,j:1,k:1,l:1,m:1,n:1,o:1,p:1,q:1,r:1"), "", extproc.ErrTooMuch},
		"too long":           {decision(extproc.Destination, strings.Repeat("a", 5000)+":1"), "", extproc.ErrTooMuch},
		"a header with ends": {decision(extproc.Destination, "a:1", extproc.Prefiller, "a:1\r\nx: y"), "", extproc.ErrGarbage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := extproc.NewAnswer(nil)
			err := a.Take(c.m)
			if !errors.Is(err, c.err) || (err == nil && strings.Join(a.Destinations, " ") != c.want) {
				t.Errorf("got %v, error %v; want %q, %v", a.Destinations, err, c.want, c.err)
			}
		})
	}
}

func TestARefusalOfOursKeepsItsReasonOnTheWire(t *testing.T) {
	t.Parallel()
	for _, reason := range []scheduler.Reason{
		scheduler.FlowFull, scheduler.BandFull, scheduler.PoolFull, scheduler.QueueTimeout, scheduler.NoEndpoints,
		scheduler.ShedLoad, scheduler.Cancelled, scheduler.ShuttingDown, scheduler.Internal,
	} {
		want := scheduler.Refusal{Reason: reason, RetryAfter: 7e9, Waited: true}
		got := extproc.ReadRefusal(extproc.Refuse(&want))
		if got.Reason != reason || got.RetryAfter != want.RetryAfter || !got.Waited {
			t.Errorf("%s came as %s, retry after %v, waited %v", reason, got.Reason, got.RetryAfter, got.Waited)
		}
	}
}

func TestWhatAPickerSaysIsShortAndPrintable(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"plain": "inference error: X - " + strings.Repeat("long ", 1000), "JSON": `{"error":{"message":"` + strings.Repeat("x", 5000) + `"}}`,
		"control": "a\x1b[31m\r\nb\x00", "not UTF-8": "\xff\xfe\xfd",
	} {
		refusal := extproc.ReadRefusal(&extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: 500}, Body: []byte(body)})
		said, ok := errors.AsType[*extproc.Said](refusal.Err)
		if !ok || len(said.Message) > 256 || strings.ContainsFunc(said.Message, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%s: %q", name, said.Message)
		}
	}
}

// FuzzPeer feeds what a peer may send: any bytes that are a message of the
// protocol. Nothing of it may panic, grow without bound, or be taken for a
// destination or header that it isn't.
func FuzzPeer(f *testing.F) {
	for _, m := range []*extprocv3.ProcessingResponse{
		decision(extproc.Destination, "10.0.0.1:8000,[fd00::1]:9", extproc.Prefiller, "10.0.0.2:1"), piece([]byte("body"), true),
		{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: extproc.Refuse(&scheduler.Refusal{Reason: scheduler.BandFull})}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte("body"))
	}
	f.Fuzz(func(t *testing.T, raw, sent []byte) {
		var m extprocv3.ProcessingResponse
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		if refusal := m.GetImmediateResponse(); refusal != nil {
			if r := extproc.ReadRefusal(refusal); r.Reason == "" || r.RetryAfter < 0 || len(r.Error()) > 2000 {
				t.Fatalf("a refusal %+v", r)
			}
			return
		}
		a := extproc.NewAnswer(sent)
		for range 3 {
			if a.Take(&m) != nil {
				break
			}
		}
		if len(a.Body()) > len(sent)+1<<20 {
			t.Fatalf("a body of %d bytes for one of %d", len(a.Body()), len(sent))
		}
		for _, host := range a.Destinations {
			if strings.ContainsAny(host, " /@\r\n\x00") || !strings.Contains(host, ":") {
				t.Fatalf("destination %q", host)
			}
		}
		for _, h := range a.Headers {
			if strings.ContainsAny(h[1], "\r\n\x00") || len(h[1]) > 1024 {
				t.Fatalf("header %q", h)
			}
		}
	})
}

// FuzzFacts reads what anybody who reaches a `weir scheduler` may send.
func FuzzFacts(f *testing.F) {
	f.Add("x-weir-weight", "-1", "x-weir-ttl-us", "9223372036854775807")
	f.Add("X-Weir-Waited-Us", "1", "x-weir-session", "%zz")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		m := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: extproc.FactsVersion, Value: "1"}, {Key: name1, RawValue: []byte(value1)}, {Key: name2, Value: value2},
		}}
		facts, _, err := extproc.DecodeFacts(m)
		if err != nil {
			return
		}
		if facts.Weight < 0 || facts.InputTokens < 0 || facts.OutputTokens < 0 || facts.Reserved < 0 || facts.Turn < 0 || facts.Waited < 0 {
			t.Fatalf("facts %+v", facts)
		}
	})
}

// FuzzReport reads a body message and trailers of the answer's phase.
func FuzzReport(f *testing.F) {
	f.Add([]byte("e123"), "completed", "5")
	f.Fuzz(func(t *testing.T, report []byte, result, tokens string) {
		if p, err := extproc.ReadReport(report); err == nil && p.OutputTokens < 0 {
			t.Fatalf("report %+v", p)
		}
		o, err := extproc.DecodeOutcome(&corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: "x-weir-result", Value: result}, {Key: "x-weir-input-tokens", Value: tokens},
		}})
		if err == nil && o.InputTokens < 0 {
			t.Fatalf("outcome %+v", o)
		}
	})
}

func TestABodyThatIsNotRepeatedGoesAsItIs(t *testing.T) {
	t.Parallel()
	unchanged := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{}},
	}}
	sent := []byte(`{"model":"m"}`)
	a := extproc.NewAnswer(sent)
	if err := a.Take(decision(extproc.Destination, "10.0.0.1:8000")); err != nil {
		t.Fatal(err)
	}
	if err := a.Take(unchanged); err != nil || !a.Done() || !bytes.Equal(a.Body(), sent) {
		t.Errorf("done %v, body %q, error %v", a.Done(), a.Body(), err)
	}
	b := extproc.NewAnswer(sent)
	for _, m := range []*extprocv3.ProcessingResponse{decision(extproc.Destination, "10.0.0.1:8000"), piece(sent[:3], false)} {
		if err := b.Take(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Take(unchanged); err == nil {
		t.Error("half a body was taken as the whole")
	}
}
