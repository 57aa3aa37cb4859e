package pgserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"syscall"
)

// namespaces: the kernel may have user namespaces.
const namespaces = true

// nobody is who root becomes inside the namespace. initdb wants a name for it,
// and Linux systems have one.
const nobody = 65534

// attributes puts the program into a group of its own, so that Ctrl-C reaches
// us and not it, and has the kernel end it cleanly when we are killed.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT, Credential: a.other}
	if a.namespace {
		attr.Cloneflags = syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: nobody, HostID: 0, Size: 1}}
		attr.GidMappingsEnableSetgroups = false
	}
	return attr
}

// guard has nothing to do: see Pdeathsig.
func guard(int) (release func(), err error) {
	return func() {}, nil
}

// commandLine is the program and its arguments; empty when there is no such
// process.
func commandLine(_ context.Context, pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
}
