package kvevents_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"

	"weir/scheduler"
	"weir/scheduler/kvevents"
)

// publisher is a program over libzmq that publishes each line of its input, and
// sends again what it is asked for, as vLLM's publisher does. A line that begins
// with "-" is not published.
const publisher = `
import sys, threading, zmq
context = zmq.Context()
pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (pub, router)]
print(*ports, flush=True)
history = []
def serve():
    while True:
        who, _, start = router.recv_multipart()
        for number, payload in list(history):
            if number >= int.from_bytes(start, "big"):
                router.send_multipart((who, b"", number.to_bytes(8, "big"), payload))
        router.send_multipart((who, b"", (-1).to_bytes(8, "big", signed=True), b""))
threading.Thread(target=serve, daemon=True).start()
for number, line in enumerate(sys.stdin):
    payload = bytes.fromhex(line.strip().lstrip("-"))
    history.append((number, payload))
    if not line.startswith("-"):
        pub.send_multipart((b"kv@pod@m", number.to_bytes(8, "big"), payload))
    print("done", flush=True)
`

func TestAPublisherOfLibzmqIsFollowed(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", "import zmq").CombinedOutput(); err != nil {
		t.Skipf("needs python3 with pyzmq: %v %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", publisher)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	var events, replay int
	said := bufio.NewReader(out)
	if _, err := fmt.Fscanln(said, &events, &replay); err != nil {
		t.Fatal(err)
	}
	at := func(port int) net.Listener { return fixed{port: port} }
	say := func(prefix string, payload []byte) {
		_, _ = io.WriteString(in, prefix+hex.EncodeToString(payload)+"\n")
		if line, err := said.ReadString('\n'); line != "done\n" {
			t.Fatalf("the publisher says %q: %v", line, err)
		}
	}
	say("-", batch(t, 0, 2)) // before anybody follows
	r := follow(t, kvevents.Source{Events: to(at(events)), Replay: to(at(replay))})
	r.expects(scheduler.Trusted, 2)
	say("", batch(t, 2, 40))
	r.expects(scheduler.Trusted, 40)
	say("-", batch(t, 40, 41)) // missed
	say("", batch(t, 41, 42))
	r.expects(scheduler.Trusted, 42)
	if s := r.follower.Stats(); s.Gaps == 0 || s.Malformed+s.Orphans+s.Reordered > 0 {
		t.Errorf("seen: %+v", s)
	}
}

// fixed is where another program listens.
type fixed struct {
	net.Listener

	port int
}

func (f fixed) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: f.port} }
