package criu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/replace"
	"github.com/agentsafe/agentsafe/runtime/entry"
)

// Start says how CRIU's process comes into being.
type Start struct {
	// Files are its descriptors from 3 on; they stay the caller's.
	Files []*os.File
	// Attr are the attributes of its process; nil for none.
	Attr *syscall.SysProcAttr
	// Namespaces, if it is not nil, is called in a restore when the first process and its namespaces exist, and before their
	// network is set up; CRIU waits for it, and gives up if it fails.
	Namespaces func(pid int) error
}

// Run runs CRIU with the arguments of a plan and waits for it. It is started by the calling thread, whose namespaces it
// inherits.
func Run(ctx context.Context, o *Options, args []string, s Start) error {
	if o.Work != "" {
		// CRIU writes its log there by a name that somebody else could have made a link, and executes our script
		// (TestAttack_ImagesOfAnother).
		work, err := openOwn("directory of logs", o.Work)
		if err != nil {
			return err
		}
		work.Close()
	}
	if s.Namespaces == nil {
		return run(ctx, o, args, &s)
	}
	st, err := newStage(o.work())
	if err != nil {
		return err
	}
	defer st.close()
	served := make(chan error, 1)
	go func() { served <- st.serve(s.Namespaces) }()
	err = run(ctx, o, append(args, "--action-script", st.script()), &s)
	st.hangUp()
	if serr := <-served; serr != nil {
		return serr // why CRIU gave up
	}
	return err
}

func run(ctx context.Context, o *Options, args []string, s *Start) error {
	cmd := exec.CommandContext(ctx, o.program(), args...)
	cmd.ExtraFiles, cmd.SysProcAttr, cmd.Dir = s.Files, s.Attr, "/"
	var out []byte
	err := entry.Children(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil && cmd.Process != nil && cmd.ProcessState == nil {
		// It could not be waited for, and may be at work: what it makes must not come after what undoes it.
		cmd.Process.Kill() //nolint:errcheck // gone is what we want
		cmd.Process.Wait() //nolint:errcheck // likewise
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	log := filepath.Join(o.work(), logFile(args[0]))
	if why := complaint(log, out); why != "" {
		return fmt.Errorf("%s %s: %w: %s (%s says more)", o.program(), args[0], err, why, log)
	}
	return fmt.Errorf("%s %s: %w", o.program(), args[0], err)
}

// maxLineBytes bounds a line of CRIU's log.
const maxLineBytes = 1 << 16

// complaint finds the first error in CRIU's log, which is the cause of the others; if there is none, the last thing that
// it said.
func complaint(log string, output []byte) string {
	for _, text := range [][]byte{readLog(log), output} {
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, maxLineBytes)
		for lines.Scan() {
			if _, why, found := strings.Cut(lines.Text(), "Error ("); found {
				if _, message, found := strings.Cut(why, "): "); found {
					return strings.TrimSpace(message)
				}
				return strings.TrimSpace(why)
			}
		}
	}
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}

// readLog reads a log; nil if there is none.
func readLog(name string) []byte {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return data
}

// Meta is what CRIU does not write down, in a file beside its images.
type Meta struct {
	// Streams are those of External.
	Streams []string `json:"streams"`
	// EmptyNetwork says that the network namespace was not written.
	EmptyNetwork bool `json:"emptyNetwork,omitempty"`
}

const metaFile = "agentsafe.json"

// OpenImages opens a directory of images. One that somebody else owns or can write to is refused: who writes images says
// what runs, as whom and with which rights. The caller closes it.
func OpenImages(dir string) (*os.File, error) { return openOwn("images", dir) }

func openOwn(what, dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", what, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	const othersWrite = 0o022
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&othersWrite != 0) {
		err = fmt.Errorf("it belongs to uid %d, mode %04o, and what is there says what runs: want a directory of uid %d that nobody else can write to: %w",
			st.Uid, st.Mode&0o7777, os.Geteuid(), unix.EPERM)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s %q: %w", what, dir, err)
	}
	return f, nil
}

// WriteMeta keeps m beside the images.
func WriteMeta(images *os.File, m *Meta) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", metaFile, err)
	}
	return replace.File(images, metaFile, data, 0o600)
}

// ReadMeta returns what WriteMeta kept.
func ReadMeta(images *os.File) (*Meta, error) {
	fd, err := unix.Openat(int(images.Fd()), metaFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("images %q have no %s: they are not a checkpoint of agentsafe: %w", images.Name(), metaFile, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", metaFile, err)
	}
	f := os.NewFile(uintptr(fd), metaFile)
	defer f.Close()
	const standardStreams, maxBytes = 3, 4096
	var m Meta
	if err := json.NewDecoder(io.LimitReader(f, maxBytes)).Decode(&m); err != nil {
		return nil, fmt.Errorf("read %s: %w", metaFile, err)
	}
	if len(m.Streams) != standardStreams {
		return nil, fmt.Errorf("%s has %d streams, want three: %w", metaFile, len(m.Streams), unix.EINVAL)
	}
	for _, s := range m.Streams {
		if s != "" && inheritKey(s) == s && !isFile(s) {
			return nil, fmt.Errorf("%s: %q is no stream: %w", metaFile, s, unix.EINVAL)
		}
	}
	return &m, nil
}

// Streams names the standard streams of a process: those that a restored one needs to be given again. A terminal is
// refused; what lies in the container's own file systems needs nothing, and is "".
func Streams(pid int) ([]string, error) {
	inside, err := mountIDs(pid)
	if err != nil {
		return nil, err
	}
	var out []string
	for fd := range 3 {
		dir := "/proc/" + strconv.Itoa(pid)
		name := dir + "/fd/" + strconv.Itoa(fd)
		var st unix.Stat_t
		link, err := os.Readlink(name)
		if err == nil {
			err = unix.Stat(name, &st)
		}
		if errors.Is(err, unix.ENOENT) {
			out = append(out, "") // closed
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look at stream %d of process %d: %w", fd, pid, err)
		}
		switch kind := st.Mode & unix.S_IFMT; {
		case inheritKey(link) != link:
			out = append(out, link)
		case kind == unix.S_IFCHR && unix.Major(st.Rdev) != 1: // memory devices: null, zero, full
			return nil, fmt.Errorf("stream %d is the device %s, whose other end is not the container's: %w", fd, link, unix.EOPNOTSUPP)
		case kind == unix.S_IFCHR:
			out = append(out, "")
		default:
			mount, err := mountID(dir + "/fdinfo/" + strconv.Itoa(fd))
			if err != nil {
				return nil, fmt.Errorf("look at stream %d of process %d: %w", fd, pid, err)
			}
			if inside[mount] {
				out = append(out, "")
				continue
			}
			out = append(out, fmt.Sprintf("file[%x:%x]", mount, st.Ino))
		}
	}
	return out, nil
}

// mountID reads the mount that a descriptor's file is on. Source: proc_pid_fdinfo(5).
func mountID(fdinfo string) (int, error) {
	data, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if id, found := strings.CutPrefix(line, "mnt_id:"); found {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, fmt.Errorf("%s has no mount: %w", fdinfo, unix.EINVAL)
}

// mountIDs lists the mounts of a process's namespace. Source: proc_pid_mountinfo(5).
func mountIDs(pid int) (map[int]bool, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts of process %d: %w", pid, err)
	}
	out := map[int]bool{}
	for line := range strings.Lines(string(data)) {
		first, _, _ := strings.Cut(line, " ")
		id, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("list mounts of process %d: %w", pid, err)
		}
		out[id] = true
	}
	return out, nil
}
