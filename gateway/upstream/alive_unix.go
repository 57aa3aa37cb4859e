//go:build unix

package upstream

import (
	"crypto/tls"
	"net"
	"syscall"
)

// alive reports whether a waiting connection still stands: its server has
// neither ended it nor sent what nobody asked for. It does not wait. A
// connection that can't be looked at counts as alive.
func alive(c net.Conn) bool {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	sys, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return false
	}
	stands := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		stands = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK || err == syscall.EINTR
		return true
	})
	return err == nil && stands
}
