package section

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAReportKeepsWhatElseThePageSays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "docs", "performance.md")
	for i, text := range []string{"first", "second"} {
		if err := Place(path, "Performance", "bench", text); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			old, _ := os.ReadFile(path)
			if err := os.WriteFile(path, append(old, "\nA word by hand.\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(got); strings.Contains(s, "first") || !strings.Contains(s, "second") || !strings.Contains(s, "A word by hand.") ||
		strings.Count(s, "<!-- bench: begin -->") != 1 || !strings.HasPrefix(s, "# Performance") {
		t.Errorf("page:\n%s", s)
	}
	plain := filepath.Join(t.TempDir(), "plain.md")
	if err := os.WriteFile(plain, []byte("# Mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Place(plain, "Performance", "bench", "numbers"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(plain); !strings.HasPrefix(string(got), "# Mine\n\n<!-- bench: begin -->") {
		t.Errorf("page:\n%s", got)
	}
}
