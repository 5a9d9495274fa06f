package record

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Observations are what was seen of one run or several; they survive JSON.
type Observations struct {
	// Home and Workspace are the directories that the run had as these.
	Home      string   `json:"home"`
	Workspace string   `json:"workspace"`
	Commands  []string `json:"commands"`
	// Reads, Writes and Executes count files by their real paths.
	Reads    map[string]int `json:"reads"`
	Writes   map[string]int `json:"writes"`
	Executes map[string]int `json:"executes"`
	// Calls are system calls that the built-in list refuses.
	Calls map[string]int `json:"calls"`
	// Names are names that were looked up, Addresses where was connected to beyond this host.
	Names     map[string]int `json:"names"`
	Addresses map[string]int `json:"addresses"`
	// Processes is the largest number of threads at a time, MaxRSSBytes the largest process.
	Processes   int   `json:"processes"`
	MaxRSSBytes int64 `json:"maxRSSBytes"`
}

// NewObservations are those of a run that has not begun.
func NewObservations(home, workspace string) *Observations {
	return &Observations{
		Home: home, Workspace: workspace, Reads: map[string]int{}, Writes: map[string]int{}, Executes: map[string]int{},
		Calls: map[string]int{}, Names: map[string]int{}, Addresses: map[string]int{},
	}
}

// Merge adds what another run has seen.
func (o *Observations) Merge(more *Observations) {
	o.Commands = append(o.Commands, more.Commands...)
	for _, m := range []struct{ into, from map[string]int }{
		{o.Reads, more.Reads}, {o.Writes, more.Writes}, {o.Executes, more.Executes}, {o.Calls, more.Calls}, {o.Names, more.Names}, {o.Addresses, more.Addresses},
	} {
		for k, n := range m.from {
			m.into[k] += n
		}
	}
	o.Processes = max(o.Processes, more.Processes)
	o.MaxRSSBytes = max(o.MaxRSSBytes, more.MaxRSSBytes)
}

type kind int

const (
	kindRead kind = iota
	kindWrite
	kindExecute
)

// stop is a task that waits before a system call.
type stop struct {
	pid  int
	args [6]uint64
}

// word reads eight bytes of the task's memory, 0 if it can't.
func (t *stop) word(at uint64) uint64 {
	var b [8]byte
	if !t.read(at, b[:]) {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (t *stop) read(at uint64, into []byte) bool {
	n, err := unix.ProcessVMReadv(t.pid, []unix.Iovec{iovec(into)}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(into)}}, 0)
	return err == nil && n == len(into)
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// text reads a string; "" if there is none.
func (t *stop) text(at uint64) string {
	const page, longest = 4096, 4096
	var out []byte
	for at != 0 && len(out) < longest {
		chunk := make([]byte, min(page-at%page, 256))
		if !t.read(at, chunk) {
			return ""
		}
		if i := bytes.IndexByte(chunk, 0); i >= 0 {
			return string(append(out, chunk[:i]...))
		}
		out = append(out, chunk...)
		at += uint64(len(chunk))
	}
	return ""
}

// path reads the path argument, absolute; dirArg is [none] for the working directory.
func (t *stop) path(dirArg, pathArg int) string {
	p := t.text(t.args[pathArg])
	if p == "" || filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	link := "/proc/" + strconv.Itoa(t.pid) + "/cwd"
	if dirArg != none {
		if fd := int32(t.args[dirArg]); fd != unix.AT_FDCWD { //nolint:gosec // the kernel takes 32 bits
			link = "/proc/" + strconv.Itoa(t.pid) + "/fd/" + strconv.Itoa(int(fd))
		}
	}
	dir, err := os.Readlink(link)
	if err != nil || !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Join(dir, p)
}

type recorder struct {
	seen *Observations
	// known are files that need no second look, by kind.
	known map[kind]map[string]bool
	// begun says that the run has taken the place of the recorder's child.
	begun bool
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
	if p == "" || p == "." {
		return
	}
	into := map[kind]map[string]int{kindRead: r.seen.Reads, kindWrite: r.seen.Writes, kindExecute: r.seen.Executes}[k]
	if r.known[k][p] {
		return
	}
	real, err := filepath.EvalSymlinks(p)
	if err != nil && k == kindWrite {
		if real, err = filepath.EvalSymlinks(filepath.Dir(p)); err == nil {
			real = filepath.Join(real, filepath.Base(p))
		}
	}
	if err != nil {
		return
	}
	r.known[k][p] = true
	into[real]++
}

// execute counts a program, and what the kernel loads for it: an interpreter has to be executable too.
func (r *recorder) execute(t *stop, dirArg, pathArg int) {
	p := t.path(dirArg, pathArg)
	if p == "" || r.known[kindExecute][p] {
		return
	}
	const deep = 4
	at := p
	for range deep {
		real, err := filepath.EvalSymlinks(at)
		if err != nil {
			return
		}
		r.known[kindExecute][at] = true
		r.seen.Executes[real]++
		r.seen.Reads[real]++
		if at = interpreter(real); at == "" {
			return
		}
	}
}

// interpreter returns what a program is started by, "" for nothing.
func interpreter(program string) string {
	f, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := f.Read(head) //nolint:errcheck // what is there is looked at
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
	r.seen.Addresses[to.String()]++
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
				r.seen.Names[strings.ToLower(strings.Join(labels, "."))]++
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
