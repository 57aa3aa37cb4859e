package eppreal

import "syscall"

// leash ends the picker with the program that runs it, however that ends.
func leash() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
