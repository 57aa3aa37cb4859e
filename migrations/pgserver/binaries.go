package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
)

// oldest is the oldest major version for which our SQL is written.
const oldest = 15

// installed is where packages put the programs, a folder for each version.
func installed() []string {
	return []string{
		"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
		"/usr/pgsql-*/bin",                   // Postgres' own RPMs
		"/opt/homebrew/opt/postgresql@*/bin", // macOS, arm64
		"/usr/local/opt/postgresql@*/bin",    // macOS, x64
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	}
}

// find returns a folder that has initdb and postgres of the wanted major
// version, or of the newest one when want is 0. In order: the setting, the
// machine's packages, PATH, what was fetched before, and last the network.
func find(ctx context.Context, c Config, want int, tell func(string)) (string, error) {
	if c.Binaries != "" {
		v, err := versionOf(ctx, c.Binaries)
		if err != nil {
			return "", fmt.Errorf("postgres programs as set: %w", err)
		}
		return c.Binaries, suits(v, want)
	}
	if bin := findInstalled(ctx, installed(), want); bin != "" {
		return bin, nil
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if bin := findInstalled(ctx, []string{filepath.Dir(path)}, want); bin != "" {
			return bin, nil
		}
	}
	bin, err := fetched(ctx, c.Cache, want, tell)
	if err != nil {
		return "", fmt.Errorf("no Postgres %s on this machine: %w\n%s", wanted(want), err, advice(want))
	}
	return bin, nil
}

// findInstalled returns the folder with the newest version that suits.
func findInstalled(ctx context.Context, patterns []string, want int) string {
	best, bestVersion := "", 0
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, bin := range found {
			v, err := versionOf(ctx, bin)
			if err == nil && suits(v, want) == nil && v > bestVersion {
				best, bestVersion = bin, v
			}
		}
	}
	return best
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// versionOf asks the program, which also proves that it runs here.
func versionOf(ctx context.Context, bin string) (int, error) {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output() //nolint:gosec // a folder of programs by setting
	if err != nil {
		return 0, fmt.Errorf("%s/postgres doesn't run: %w", bin, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s/postgres has no version: %q", bin, out)
	}
	return strconv.Atoi(string(m[1]))
}

func suits(version, want int) error {
	switch {
	case version < oldest:
		return fmt.Errorf("postgres %d is too old, at least %d is needed", version, oldest)
	case want != 0 && version != want:
		return fmt.Errorf("the data was written by Postgres %d and these programs are %d: install %d, or remove the data to begin anew", want, version, want)
	default:
		return nil
	}
}

func wanted(want int) string {
	if want == 0 {
		return fmt.Sprintf(">= %d", oldest)
	}
	return strconv.Itoa(want) + ", which wrote the existing data,"
}

// advice is the command that installs what is missing.
func advice(want int) string {
	name := "postgresql"
	switch {
	case runtime.GOOS == "darwin" && want == 0:
		return "install it: brew install postgresql@17"
	case runtime.GOOS == "darwin":
		return fmt.Sprintf("install it: brew install postgresql@%d", want)
	case want != 0:
		name = fmt.Sprintf("postgresql-%d", want)
	}
	return "install it: apt-get install " + name
}

var errNoPackage = errors.New("none is packaged for this platform")
