// Package socket makes, finds and removes the sockets at which shims listen.
//
// A shim's socket has mode 0600 from the moment it exists, in a directory of mode 0700 that is the shims' own or the one
// that containerd names, and is never abstract (CVE-2020-15257). Its name is a hash of containerd's address, the
// namespace and the group: the pod's sandbox, or an annotation, or the container itself. One that a dead shim has left is
// replaced by the next, and swept by whoever cleans up.
//
// It refuses a directory that is not the caller's alone. Minimum kernel: none.
package socket
