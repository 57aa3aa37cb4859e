//go:build !linux

package main

import "syscall"

// dieWithParent does nothing: this system has no such signal, and a child that
// outlives a killed parent ends at the next start or by hand.
func dieWithParent(*syscall.SysProcAttr) {}
