package catalogue_test

import (
	"testing"

	"weir/gateway/catalogue"
)

func TestWhereAnEnginePublishesIsReadOnlyWhereNobodyElseCan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, url, place string
		encrypted        bool
		rank             int
		want             catalogue.KVSource // without an address: refused
	}{
		{name: "this machine", url: "http://10.0.0.1:8000", place: "tcp://127.0.0.1:5557", want: catalogue.KVSource{Address: "127.0.0.1:5557"}},
		{name: "another one by TLS", url: "http://10.0.0.1:8000", place: "tls://10.0.0.1:5557", want: catalogue.KVSource{Address: "10.0.0.1:5557", TLS: true}},
		{name: "another one in plain text", url: "http://10.0.0.1:8000", place: "tcp://10.0.0.1:5557"},
		{name: "another one in a network that encrypts", url: "http://10.0.0.1:8000", place: "tcp://10.0.0.1:5557", encrypted: true, want: catalogue.KVSource{Address: "10.0.0.1:5557"}},
		{name: "the endpoint's own host", url: "http://[::1]:8000", place: "tcp://*:5557", rank: 2, want: catalogue.KVSource{Address: "[::1]:5559"}},
		{name: "the endpoint's own host, elsewhere", url: "http://10.0.0.1:8000", place: "tcp://*:5557"},
		{name: "a name that may be anything", url: "http://10.0.0.1:8000", place: "tcp://engine:5557"},
		{name: "no port", url: "http://10.0.0.1:8000", place: "tls://10.0.0.1"},
		{name: "a port beyond the last", url: "http://10.0.0.1:8000", place: "tls://10.0.0.1:65535", rank: 1},
		{name: "another scheme", url: "http://10.0.0.1:8000", place: "http://127.0.0.1:5557"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := catalogue.Endpoint{URL: c.url, KVEvents: c.place, KVNetworkEncrypted: c.encrypted}
			got, _, err := e.KVSources(c.rank)
			if got != c.want || (err == nil) != (c.want.Address != "") {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}
