package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir/gateway/admission"
	"weir/gateway/admission/admissiontest"
)

// documentedUser is the line of docs/operating.md that makes Redis' user.
func documentedUser(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER (weir on >PASSWORD .*)$`).FindSubmatch(raw)
	if line == nil {
		t.Fatal("docs/operating.md does not make Redis' user")
	}
	return string(line[1])
}

// startTLSRedis runs a redis-server that speaks TLS alone and knows one user, and
// returns its address and the certificate that signs it.
func startTLSRedis(t *testing.T, user string) (addr, ca string) {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed (make test installs it)")
	}
	dir := t.TempDir()
	cert, key, _ := selfSigned(t)
	addr = freeAddress(t)
	_, port, _ := net.SplitHostPort(addr)
	config := strings.Join([]string{
		"port 0", "bind 127.0.0.1", "tls-port " + port, "tls-cert-file " + cert, "tls-key-file " + key, "tls-ca-cert-file " + cert,
		"tls-auth-clients no", `save ""`, "databases 64", "dir " + dir, "user default off", "user " + user,
	}, "\n")
	file := filepath.Join(dir, "redis.conf")
	writeTo(t, file, config+"\n")
	cmd := exec.CommandContext(t.Context(), binary, file)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, 30*time.Second, func() string {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err.Error()
		}
		_ = conn.Close()
		return ""
	})
	return addr, cert
}

// secured is a configuration for a Redis of startTLSRedis.
func secured(addr, ca, password string) *Config {
	return &Config{RedisURL: Secret("rediss://" + addr), RedisUser: "weir", RedisPassword: Secret(password), RedisCA: ca}
}

func TestRedisOverTLSAsTheDocumentedUser(t *testing.T) {
	t.Parallel()
	addr, ca := startTLSRedis(t, documentedUser(t)+" +select")
	if f := checkRedis(t.Context(), secured(addr, ca, "PASSWORD")); f.wrong != "" {
		t.Errorf("doctor: %s", f.wrong)
	}
	if f := checkRedis(t.Context(), secured(addr, ca, "guessed")); !f.fault || strings.Contains(f.wrong, "guessed") {
		t.Errorf("doctor, with a wrong password: %+v", f)
	}
	if f := checkRedis(t.Context(), secured(addr, "", "PASSWORD")); f.wrong == "" {
		t.Error("a certificate that nobody signed is taken")
	}

	var databases atomic.Int32
	admissiontest.Test(t, func(t *testing.T) admissiontest.Fixture {
		t.Helper()
		open := func(db int32) *admission.Redis {
			c := secured(fmt.Sprintf("%s/%d", addr, db), ca, "PASSWORD")
			client, err := openRedis(c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			return admission.NewRedis(slog.New(slog.DiscardHandler), client, admission.RedisConfig{Timeout: 20 * time.Second, SlotTTL: 3 * time.Second})
		}
		db := databases.Add(1) - 1
		store := open(db)
		return admissiontest.Fixture{
			Store:   store,
			Advance: func(d time.Duration) { <-time.After(d) },
			Slack:   time.Minute,
			SlotTTL: 3 * time.Second,
			Die: func(t *testing.T) admission.Intents {
				t.Helper()
				told, cancel := context.WithCancel(t.Context())
				cancel()
				if err := store.Run(told); err != nil { // its last releases were on their way
					t.Fatal(err)
				}
				return open(db)
			},
		}
	})
}

func TestDoctorNamesWhatRedisRefuses(t *testing.T) {
	t.Parallel()
	user := strings.NewReplacer(" +zadd", "", " +subscribe", "", " +script|load", "").Replace(documentedUser(t))
	addr, ca := startTLSRedis(t, user)
	f := checkRedis(t.Context(), secured(addr, ca, "PASSWORD"))
	if !f.fault || !strings.Contains(f.wrong, "SCRIPT, SUBSCRIBE, ZADD") {
		t.Errorf("doctor: %+v, want the three that are missing", f)
	}
}

// Nothing is sent in the clear to another machine unless the operator says so.
func TestRedisElsewhereNeedsTLS(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, url, plaintext string
		refused              bool
	}{
		{"this machine", "redis://127.0.0.1:6379", "off", false},
		{"this machine, by name", "redis://localhost:6379", "off", false},
		{"this machine, IPv6", "redis://[::1]:6379", "off", false},
		{"a socket", "unix:///run/redis.sock", "off", false},
		{"another", "redis://:s3cret@10.0.0.7:6379", "off", true},
		{"another, by a name that begins like ours", "redis://localhost.example.com:6379", "off", true},
		{"another, as the operator allows", "redis://10.0.0.7:6379", "on", false},
		{"another, with TLS", "rediss://10.0.0.7:6379", "off", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			client, err := openRedis(&Config{RedisURL: Secret(tt.url), RedisPlaintext: tt.plaintext})
			if client != nil {
				_ = client.Close()
			}
			if (err != nil) != tt.refused || err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("error = %v, want refused = %v", err, tt.refused)
			}
		})
	}
}

func TestAReplicaSharesLimitsOverTLS(t *testing.T) {
	t.Parallel()
	in := install(t)
	addr, ca := startTLSRedis(t, documentedUser(t))
	password := filepath.Join(in.dir, "redis-password")
	writeTo(t, password, "PASSWORD\n")
	settings := []string{"WEIR_REDIS_URL=rediss://" + addr, "WEIR_REDIS_USER=weir", "WEIR_REDIS_PASSWORD_FILE=" + password, "WEIR_REDIS_CA_FILE=" + ca}
	first, _ := in.serve(t, settings...)
	readinessIs(t, in.ops, "ready")
	second, _ := in.serve(t, settings...)
	readinessIs(t, in.ops, "ready")
	if n := in.admitted(t, 6, first, second); n != 6 {
		t.Errorf("two replicas admitted %d of 6 a minute", n)
	}
}
