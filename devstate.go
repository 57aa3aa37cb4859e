package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// devState is the folder in which `weir dev` keeps what must outlive it: the
// database, its secrets and the environment file. One process at a time.
type devState struct {
	dir  string
	lock *os.File
}

// openDevState makes the folder if it isn't there and takes its lock, which
// the system gives back when the process ends, however it ends.
func openDevState(dir string) (*devState, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("another weir dev runs on %s: stop it, or give this one a --state folder of its own", dir)
	}
	return &devState{dir: dir, lock: lock}, nil
}

func (s *devState) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

func (s *devState) close() { _ = s.lock.Close() }

// devSecrets are made at the first start. They protect nothing but this
// machine's playground, and are still kept like the real ones.
type devSecrets struct {
	Pepper    string `json:"keys_pepper"`
	Master    string `json:"master_keys"`
	CacheSalt string `json:"cache_salt_secret"`
	OpsToken  string `json:"ops_token"`
	APIKey    string `json:"api_key,omitempty"` // the key that is printed; reused by the next run
	Tenant    string `json:"tenant,omitempty"`

	PrivateURL string `json:"private_database_url,omitempty"` // of weir_app at the private Postgres
}

func (s *devState) loadSecrets() (*devSecrets, error) {
	raw, err := os.ReadFile(s.path("secrets.json"))
	if errors.Is(err, os.ErrNotExist) {
		fresh := &devSecrets{
			Pepper:    "1:" + base64.StdEncoding.EncodeToString([]byte(rand.Text()+rand.Text())),
			Master:    newMasterKey(),
			CacheSalt: rand.Text() + rand.Text(),
			OpsToken:  rand.Text(),
		}
		return fresh, s.saveSecrets(fresh)
	}
	if err != nil {
		return nil, err
	}
	var known devSecrets
	if err := json.Unmarshal(raw, &known); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): remove the state folder to start afresh", s.path("secrets.json"), err)
	}
	if known.Master == "" { // of a playground that was made before there were any
		known.Master = newMasterKey()
		return &known, s.saveSecrets(&known)
	}
	return &known, nil
}

func newMasterKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return "1:" + base64.StdEncoding.EncodeToString(key)
}

func (s *devState) saveSecrets(secrets *devSecrets) error {
	raw, err := json.MarshalIndent(secrets, "", "  ") //nolint:gosec // the file is for them alone, and 0600
	if err != nil {
		return err
	}
	return replaceFile(s.path("secrets.json"), raw)
}

// writeEnv replaces dev.env by lines NAME=value that a shell can read.
func (s *devState) writeEnv(pairs [][2]string) error {
	var b strings.Builder
	for _, p := range pairs {
		fmt.Fprintf(&b, "%s='%s'\n", p[0], p[1])
	}
	return replaceFile(s.path("dev.env"), []byte(b.String()))
}

// replaceFile writes the file whole or not at all, readable by its owner alone.
func replaceFile(path string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
