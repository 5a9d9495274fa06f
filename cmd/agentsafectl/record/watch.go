package record

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"net/netip"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxKeptBytes bounds the paths and names that are kept of one run.
const maxKeptBytes = 32 << 20

type recorder struct {
	seen *Observations
	// known are files that need no second look, by kind.
	known map[kind]map[string]bool
	// kept is how many bytes of paths and names are held.
	kept int
	// begun says that the run has taken the place of what the recorder was shown.
	begun bool
}

func newRecorder(seen *Observations) *recorder {
	return &recorder{seen: seen, known: map[kind]map[string]bool{kindRead: {}, kindWrite: {}, kindExecute: {}}}
}

// count adds one to a key, which is new only while there is room.
func (r *recorder) count(in map[string]int, key string) {
	if in[key] == 0 && !r.room(key) {
		return
	}
	in[key]++
}

func (r *recorder) room(key string) bool {
	if r.kept+len(key) > maxKeptBytes {
		r.seen.Dropped++
		return false
	}
	r.kept += len(key)
	return true
}

func (r *recorder) open(t *stop, dirArg, pathArg int, flags uint64) {
	if flags&unix.O_ACCMODE != unix.O_RDONLY || flags&(unix.O_CREAT|unix.O_TRUNC) != 0 {
		r.file(t, dirArg, pathArg, kindWrite)
		return
	}
	r.file(t, dirArg, pathArg, kindRead)
}

// file counts a file by its real path. What does not exist is read by nobody; what is made has a real directory.
func (r *recorder) file(t *stop, dirArg, pathArg int, k kind) {
	p := t.path(dirArg, pathArg)
	if p == "" || r.known[k][p] {
		return
	}
	into := map[kind]map[string]int{kindRead: r.seen.Reads, kindWrite: r.seen.Writes, kindExecute: r.seen.Executes}[k]
	resolved, err := t.real(p)
	if err != nil && k == kindWrite {
		if resolved, err = t.real(filepath.Dir(p)); err == nil {
			resolved = filepath.Join(resolved, filepath.Base(p))
		}
	}
	if err != nil || !r.room(p) {
		return
	}
	r.known[k][p] = true
	r.count(into, resolved)
}

// execute counts a program, and what the kernel loads for it: an interpreter has to be executable too.
func (r *recorder) execute(t *stop, dirArg, pathArg int) {
	at := t.path(dirArg, pathArg)
	const deep = 4
	for range deep {
		if at == "" || r.known[kindExecute][at] {
			return
		}
		resolved, err := t.real(at)
		if err != nil || !r.room(at) {
			return
		}
		r.known[kindExecute][at] = true
		r.count(r.seen.Executes, resolved)
		r.count(r.seen.Reads, resolved)
		at = t.interpreter(resolved)
	}
}

// interpreter returns what a program is started by, "" for nothing.
func (t *stop) interpreter(program string) string {
	// Not to wait for the writer of a FIFO.
	f, err := t.open(program, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	head := make([]byte, 256)
	n, _ := f.Read(head)
	if line, ok := strings.CutPrefix(string(head[:n]), "#!"); ok {
		line, _, _ = strings.Cut(line, "\n")
		if words := strings.Fields(line); len(words) > 0 {
			return words[0]
		}
		return ""
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return ""
	}
	for _, s := range e.Progs {
		if s.Type != elf.PT_INTERP {
			continue
		}
		data := make([]byte, min(s.Filesz, 4096))
		if _, err := s.ReadAt(data, 0); err == nil {
			return string(bytes.TrimRight(data, "\x00"))
		}
	}
	return ""
}

// connect counts addresses beyond this host.
func (r *recorder) connect(t *stop) {
	to := t.socketAddress(t.args[1], t.args[2])
	const dns = 53
	if addr := to.Addr(); !addr.IsValid() || addr.IsLoopback() || addr.IsUnspecified() || to.Port() == 0 || to.Port() == dns {
		return
	}
	r.count(r.seen.Addresses, to.String())
}

// parseSocketAddress reads a struct sockaddr_in or sockaddr_in6; invalid for anything else.
func parseSocketAddress(raw []byte) netip.AddrPort {
	var addr netip.Addr
	switch family := binary.LittleEndian.Uint16(raw); {
	case family == unix.AF_INET && len(raw) >= 8:
		addr = netip.AddrFrom4([4]byte(raw[4:8]))
	case family == unix.AF_INET6 && len(raw) >= 24:
		addr = netip.AddrFrom16([16]byte(raw[8:24])).Unmap()
	default:
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(raw[2:]))
}

// message looks at the first buffer of a struct msghdr: sendmmsg's begins with one.
func (r *recorder) message(t *stop) {
	const iovOffset = 16 // of msg_iov in struct msghdr on 64-bit machines
	iov := t.word(t.args[1] + iovOffset)
	if iov != 0 {
		r.question(t, t.word(iov), t.word(iov+8))
	}
}

// question counts the name of a DNS query.
func (r *recorder) question(t *stop, at, length uint64) {
	const header, longest = 12, 512
	if length <= header || length > longest {
		return
	}
	data := make([]byte, length)
	if !t.read(at, data) || data[2]&0xf8 != 0 || binary.BigEndian.Uint16(data[4:]) != 1 || binary.BigEndian.Uint32(data[6:]) != 0 {
		return
	}
	var labels []string
	for rest := data[header:]; len(rest) > 0; {
		n := int(rest[0])
		if n == 0 {
			if len(labels) > 1 && len(rest) >= 5 {
				r.count(r.seen.Names, strings.ToLower(strings.Join(labels, ".")))
			}
			return
		}
		if n > 63 || len(rest) < n+1 {
			return
		}
		labels = append(labels, string(rest[1:n+1]))
		rest = rest[n+1:]
	}
}
