package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// selfSigned writes a certificate for 127.0.0.1 and its key, and returns their
// files and the pool that trusts it.
func selfSigned(t *testing.T) (certFile, keyFile string, trust *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	writeTo(t, certFile, string(text))
	writeTo(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	trust = x509.NewCertPool()
	trust.AppendCertsFromPEM(text)
	return certFile, keyFile, trust
}

func TestStreamsOverHTTP2WithACertificate(t *testing.T) {
	t.Parallel()
	certFile, keyFile, trust := selfSigned(t)
	in := install(t)
	url, _ := in.serve(t, "WEIR_TLS_CERT_FILE="+certFile, "WEIR_TLS_KEY_FILE="+keyFile)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, strings.Replace(url, "http://", "https://", 1)+"/v1/chat/completions", strings.NewReader(chatBody(40, true)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", in.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Proto, res.Status)
	}
	var first, last time.Time
	done := false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			last = time.Now()
			if first.IsZero() {
				first = last
			}
		}
		done = done || lines.Text() == "data: [DONE]"
	}
	// 40 tokens take the engine 200 ms: events that came together were held back.
	if spread := last.Sub(first); !done || spread < 100*time.Millisecond {
		t.Errorf("done: %v, events within %v", done, spread)
	}
}
