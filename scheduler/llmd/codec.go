package llmd

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// bodyTag is how a message begins that has nothing but response_body (field 4,
// with a length).
const bodyTag = 4<<3 | 2

// echo is a message of the response phase, where a picker sends every event
// back: those are not decoded, which is half of what a stream costs here.
type echo struct {
	body    bool // it was one of those; message is not set
	message extprocv3.ProcessingResponse
}

// codec is protobuf's, that knows echoes.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	e, ok := v.(*echo)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if first := data.Reader(); data.Len() > 0 {
		tag, err := first.ReadByte()
		_ = first.Close()
		if e.body = err == nil && tag == bodyTag; e.body {
			return nil
		}
	}
	e.message.Reset()
	return c.CodecV2.Unmarshal(data, &e.message)
}

func callOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(codec{encoding.GetCodecV2(proto.Name)})}
}
