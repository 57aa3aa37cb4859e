//go:build !linux

package eppreal

import "syscall"

func leash() *syscall.SysProcAttr { return nil }
