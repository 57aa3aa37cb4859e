package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func env(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := pairs[name]; return v, ok }
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEnvironmentOverridesFileOverridesDefault(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "weir.yaml", "ops:\n  addr: 127.0.0.1:1\nhttp_max_body: 1MiB\nlisten: [\"127.0.0.1:2\", \"[::1]:2\"]\n")
	c, err := loadConfig(file, env(map[string]string{"WEIR_OPS_ADDR": "127.0.0.1:3"}))
	if err != nil {
		t.Fatal(err)
	}
	if c.OpsAddr != "127.0.0.1:3" || c.MaxBody != 1<<20 || len(c.Listen) != 2 || c.AuthStale != 30*time.Second {
		t.Errorf("got %+v", c)
	}
}

func TestSecretsComeFromEnvironmentOrFileOnly(t *testing.T) {
	t.Parallel()
	inYAML := writeFile(t, "weir.yaml", "keys_pepper: abc\n")
	if _, err := loadConfig(inYAML, env(nil)); err == nil || !strings.Contains(err.Error(), "WEIR_KEYS_PEPPER_FILE") {
		t.Errorf("a secret in the file: %v", err)
	}
	c, err := loadConfig("", env(map[string]string{"WEIR_CACHE_SALT_SECRET_FILE": writeFile(t, "salt", "from a file\n")}))
	if err != nil || c.CacheSalt.Reveal() != "from a file" {
		t.Errorf("from a file: %q, %v", c.CacheSalt.Reveal(), err)
	}
}

func TestSecretsHideThemselves(t *testing.T) {
	t.Parallel()
	c := Config{DatabaseURL: "postgres://u:hunter2@h/d"}
	asJSON, err := json.Marshal(c) //nolint:musttag // nobody should, but somebody might
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), string(asJSON)} {
		if strings.Contains(shown, "hunter2") {
			t.Errorf("shows the secret: %s", shown)
		}
	}
}

func TestAllComplaintsComeTogether(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "weir.yaml", "colour: red\nlog_level: loud\n")
	_, err := loadConfig(file, env(map[string]string{"WEIR_HTTP_MAX_BODY": "much", "WEIR_TRUSTED_PROXIES": "10.0.0.0/99", "WEIR_OUTBOUND_PORTS": "80,0", "WEIR_MEDIA_FETCH": "perhaps"}))
	for _, want := range []string{"colour", "log_level", "http_max_body", "trusted_proxies", "outbound_ports", "media_fetch"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no complaint about %s in: %v", want, err)
		}
	}
}

func TestSettingNamesAreUniqueAndDocumented(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range settings() {
		if seen[s.name] || s.help == "" {
			t.Errorf("%s: twice, or without help", s.name)
		}
		seen[s.name] = true
	}
}
