package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"weir/bench/proc"
)

// The ways in which a caller's bytes can travel; "" is plain HTTP/1.1.
const (
	overTLS   = "TLS 1.3"
	overHTTP2 = "HTTP/2"
)

// secureLoads are measured at targets that have a certificate.
func secureLoads(scale float64) []load {
	n := max(int(256*scale), 8)
	paced := newShape(pacedModel, 512, true)
	return []load{
		{name: "64 events 20 ms apart, 128 streams, HTTP/1.1 over TLS 1.3", shape: paced, callers: 128, n: n, aim: 1.25, over: overTLS},
		{name: "64 events 20 ms apart, 128 streams, HTTP/2 over TLS 1.3", shape: paced, callers: 128, n: n, aim: 1.25, over: overHTTP2},
	}
}

// certificate is what the run's servers show and its clients trust.
type certificate struct {
	certFile, keyFile string
	trust             *x509.CertPool
}

// newCertificate makes one for 127.0.0.1 in the folder.
func newCertificate(dir string) (certificate, error) {
	c := certificate{certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem"), trust: x509.NewCertPool()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, err
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	c.trust.AppendCertsFromPEM(public)
	if err := os.WriteFile(c.certFile, public, 0o600); err != nil {
		return c, err
	}
	return c, os.WriteFile(c.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)
}

// clients are one for each secure way.
func (c certificate) clients() map[string]*client {
	out := map[string]*client{}
	for _, over := range []string{overTLS, overHTTP2} {
		t := newTransport()
		t.TLSClientConfig = &tls.Config{RootCAs: c.trust, MinVersion: tls.VersionTLS13}
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP1(over == overTLS)
		t.Protocols.SetHTTP2(over == overHTTP2)
		out[over] = &client{http: &http.Client{Transport: t}}
	}
	return out
}

// startSecure starts the targets that have a certificate: the floor and, where
// there is an installation, the gateway.
func (b *bench) startSecure(ctx context.Context) error {
	cert, err := newCertificate(b.dir)
	if err != nil {
		return err
	}
	b.overWire = cert.clients()
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	addr := hostPort(port)
	c, err := b.launchSelf("floor-tls", floorName, addr, nil, b.mockAddr, cert.certFile, cert.keyFile)
	if err != nil {
		return err
	}
	floor := &target{name: floorName, url: "https://" + addr, parts: []proc.Part{{Name: floorName, PID: c.pid()}}}
	if err := c.ready(ctx, b.overWire[overTLS].answers(floor.url+"/health")); err != nil {
		return err
	}
	b.secure = append(b.secure, floor)
	if b.installation == nil {
		return nil
	}
	t, err := b.launch(ctx, b.installation, "weir", []string{"WEIR_TLS_CERT_FILE=" + cert.certFile, "WEIR_TLS_KEY_FILE=" + cert.keyFile})
	if err != nil {
		return err
	}
	t.url = "https" + t.url[len("http"):]
	b.secure = append(b.secure, t)
	return nil
}

// on lists the targets of a load.
func (b *bench) on(l load) []*target {
	if l.over != "" {
		return b.secure
	}
	return b.targets
}

// via is the client that sends a load.
func (b *bench) via(l load) *client {
	if c := b.overWire[l.over]; c != nil {
		return c
	}
	return b.client
}
