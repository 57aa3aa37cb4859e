package main

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"weir/gateway/catalogue"
)

func TestTheSchedulersListenerIsSafeByDefault(t *testing.T) {
	t.Parallel()
	cert, key, _ := selfSigned(t)
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	writeTo(t, notPEM, "nothing")
	for _, c := range []struct {
		name string
		cfg  SchedulerConfig
		want string // of the error; "plain", "tls", "mutual" without one
	}{
		{"plain on this machine", SchedulerConfig{Listen: "127.0.0.1:9002"}, "plain"},
		{"plain beyond it", SchedulerConfig{Listen: ":9002"}, "beyond this machine"},
		{"plain beyond it by request", SchedulerConfig{Listen: ":9002", Plaintext: "on"}, "plain"},
		{"a certificate", SchedulerConfig{Listen: ":9002", Cert: cert, Key: key}, "tls"},
		{"a certificate, and others must show theirs", SchedulerConfig{Listen: ":9002", Cert: cert, Key: key, ClientCA: cert}, "mutual"},
		{"a certificate without its key", SchedulerConfig{Listen: ":9002", Cert: cert}, "go together"},
		{"others' certificates without an own one", SchedulerConfig{Listen: "127.0.0.1:9002", ClientCA: cert}, "needs scheduler_tls_cert_file"},
		{"a file of others' certificates without any", SchedulerConfig{Listen: ":9002", Cert: cert, Key: key, ClientCA: notPEM}, "has no certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conf, err := schedulerTLS(&c.cfg)
			got := "plain"
			switch {
			case err != nil:
				got = err.Error()
			case conf != nil && conf.ClientAuth == tls.RequireAndVerifyClientCert:
				got = "mutual"
			case conf != nil:
				got = "tls"
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheSchedulerServesThePoolsThatAreItsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    schedulerOptions
		kind string
		want bool
	}{
		{"of the database's catalogue, those that gateways send here", schedulerOptions{}, catalogue.KindWeir, true},
		{"not those that gateways schedule", schedulerOptions{}, "", false},
		{"not llm-d's", schedulerOptions{}, catalogue.KindLLMD, false},
		{"of a file, those that say nothing", schedulerOptions{catalogue: "file"}, "", true},
		{"but not llm-d's", schedulerOptions{catalogue: "file"}, catalogue.KindLLMDHTTP, false},
		{"of those that are asked for, the pool", schedulerOptions{pools: []string{"p"}}, catalogue.KindWeir, true},
		{"and no other", schedulerOptions{pools: []string{"q"}}, catalogue.KindWeir, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := &catalogue.Pool{Name: "p", Scheduler: catalogue.Scheduling{Kind: c.kind}}
			if got := servesPool(c.o, p); got != c.want {
				t.Errorf("served: %v", got)
			}
		})
	}
}

func TestAPoolThatTheFlagsNameMustBeServed(t *testing.T) {
	t.Parallel()
	document := "scheduler/pickerconfig/testdata/pd.yaml"
	for _, c := range []struct {
		name string
		o    schedulerOptions
		want string
	}{
		{"a policy's", schedulerOptions{policies: []string{"mistyped=" + document}}, "--policy mistyped"},
		{"one to serve", schedulerOptions{pools: []string{"mistyped"}}, "--pool mistyped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.o.catalogue = "deploy/envoy/pools.yaml"
			_, err := newSharedScheduler(t.Context(), slog.New(slog.DiscardHandler), &Config{Scheduler: SchedulerConfig{Listen: "127.0.0.1:0"}}, c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A gateway reaches the scheduler over mutual TLS, and nobody does without a
// certificate.
func TestTheSchedulerAsksForCertificates(t *testing.T) {
	t.Parallel()
	cert, key, trust := selfSigned(t)
	clientCert, clientKey, _ := selfSigned(t)
	dir := t.TempDir()
	listen, ops := freeAddress(t), freeAddress(t)
	writeTo(t, filepath.Join(dir, "pools.yaml"), readFile(t, "deploy/envoy/pools.yaml"))
	startWeir(t, dir, []string{
		"WEIR_SCHEDULER_LISTEN=" + listen, "WEIR_OPS_ADDR=" + ops, "WEIR_SCHEDULER_TLS_CERT_FILE=" + cert,
		"WEIR_SCHEDULER_TLS_KEY_FILE=" + key, "WEIR_SCHEDULER_CLIENT_CA_FILE=" + clientCert,
	}, "scheduler", "--catalogue", "pools.yaml")
	waitFor(t, "http://"+ops+"/readyz")

	shown, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		conf   *tls.Config
		serves bool
	}{
		{"with a certificate that it trusts", &tls.Config{RootCAs: trust, Certificates: []tls.Certificate{shown}}, true},
		{"without one", &tls.Config{RootCAs: trust}, false},
		{"to whom its own means nothing", &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{shown}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := grpc.NewClient(listen, grpc.WithTransportCredentials(credentials.NewTLS(c.conf)))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			answer, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
			if serves := err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING; serves != c.serves {
				t.Errorf("serves: %v (%v)", serves, err)
			}
		})
	}
}
