package pgtest

import (
	"fmt"
	"os"
	"syscall"
)

// ours refuses a folder that somebody else put where ours belongs: temporary
// folders are everybody's.
func ours(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder of ours alone", dir)
	}
	return nil
}
