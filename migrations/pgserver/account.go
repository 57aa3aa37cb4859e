package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account says as whom Postgres' programs run. They refuse to run as root, so
// root needs another one; everybody else stays who they are.
type account struct {
	namespace bool                // a user namespace in which root is nobody
	other     *syscall.Credential // root only: run as this user
}

// newAccount chooses. As root a user namespace comes first: the files stay
// root's, wherever they are. Where it is forbidden (many containers), the
// programs run as an ordinary user who is given the folder.
func newAccount(ctx context.Context, bin, dir string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	try := account{namespace: true}
	if namespaces && try.command(ctx, filepath.Join(bin, "postgres"), "--version").Run() == nil {
		return try, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		a := account{other: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		return a, reachable(dir, name)
	}
	return account{}, errors.New("postgres doesn't run as root, and this machine has neither user namespaces nor a user postgres or nobody")
}

// command prepares a program as this account. Its environment is bare: PG*
// variables of the caller are for the caller's own servers.
func (a account) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // the path comes from find, the arguments from us
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = a.attributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// own gives the folder and what is in it to the account, if that isn't us.
func (a account) own(dir string) error {
	if a.other == nil {
		return nil
	}
	root, err := os.OpenRoot(dir) // what is already theirs must not lead us out of it
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return root.Lchown(path, int(a.other.Uid), int(a.other.Gid))
	})
}

// reachable checks that an ordinary user can get to the folder at all.
func reachable(dir, name string) error {
	const search = 0o001
	for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&search == 0 {
			return fmt.Errorf("postgres has to run as user %s here, who can't enter %s: use a state folder elsewhere, or don't run as root", name, at)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}
