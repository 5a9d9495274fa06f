package tree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Writer changes a tree one path at a time. The zero value keeps everything: owners, set-id bits, devices, attributes.
type Writer struct {
	// Plain leaves out what must not reach a host folder: owners (whoever writes owns), set-id and sticky bits,
	// attributes; and refuses everything but directories, regular files and symlinks.
	Plain bool
	// Do runs what touches the destination, for a caller that writes with another's rights; nil calls it.
	Do func(func() error) error
	// links are hard links between files that were written: inode of the source to path of the copy.
	links map[inode]string
}

type inode struct{ dev, ino uint64 }

// ErrKind is an entry that a Plain writer refuses.
var ErrKind = errors.New("neither a directory nor a regular file nor a symlink")

func (w *Writer) do(f func() error) error {
	if w.Do == nil {
		return f()
	}
	return w.Do(f)
}

// source is an entry that was opened for copying.
type source struct {
	st     unix.Stat_t
	kind   Kind
	file   *os.File // of a regular file
	target string   // of a symlink
	attrs  map[string]string
}

func (s *source) close() {
	if s.file != nil {
		s.file.Close()
	}
}

func openSource(src Root, unsafePath string) (*source, error) {
	dir, name, err := src.parent(unsafePath)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	s := &source{}
	if s.st, err = lstatAt(dir, name); err != nil {
		return nil, err
	}
	s.kind = kindOf(&s.st)
	switch s.kind {
	case File:
		if s.file, err = NewRoot(dir).OpenFile(name); err != nil {
			return nil, err
		}
		// What was opened counts, not what stood there a moment ago.
		err = unix.Fstat(int(s.file.Fd()), &s.st)
	case Symlink:
		s.target, err = readlinkAt(dir, name)
	default:
	}
	if err == nil && s.kind != Whiteout {
		var a attrs
		a, err = readAttrs(dir, name, false)
		s.attrs = a.values
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// Put makes the path in dst equal to what it is in src: for a directory the entry itself, not what is below. A whiteout,
// or nothing at all in src, removes it. Files are replaced by rename, so that a reader sees the old or the new one.
func (w *Writer) Put(src, dst Root, unsafePath string) error {
	return w.PutAs(src, unsafePath, dst, unsafePath)
}

// PutAs is Put under another path.
func (w *Writer) PutAs(src Root, from string, dst Root, unsafePath string) error {
	s, err := openSource(src, from)
	if isMissing(err) {
		return w.Remove(dst, unsafePath)
	}
	if err != nil {
		return fmt.Errorf("read %q: %w", from, err)
	}
	defer s.close()
	if s.kind == Whiteout {
		return w.Remove(dst, unsafePath)
	}
	if err := w.do(func() error { return w.put(s, dst, unsafePath) }); err != nil {
		return fmt.Errorf("write %q: %w", unsafePath, err)
	}
	return nil
}

func (w *Writer) put(s *source, dst Root, unsafePath string) error {
	if w.Plain && s.kind != Dir && s.kind != File && s.kind != Symlink {
		return ErrKind
	}
	dir, name, err := dst.parent(unsafePath)
	if err != nil {
		return err
	}
	defer dir.Close()
	have, err := lstatAt(dir, name)
	exists := err == nil
	if err != nil && !isMissing(err) {
		return err
	}
	if exists && (kindOf(&have) == Dir) != (s.kind == Dir) {
		if err := (&removal{}).at(dir, name, 0); err != nil {
			return err
		}
		exists = false
	}
	if s.kind == Dir {
		return w.putDir(s, dir, name, exists)
	}
	if exists && s.kind == File && kindOf(&have) == File {
		if done, err := w.adjust(s, dir, name, &have); done || err != nil {
			return err
		}
	}
	temp := tempName(name)
	if err := (&removal{}).at(dir, temp, 0); err != nil {
		return err
	}
	if err := w.create(s, dst, dir, temp, unsafePath); err != nil {
		(&removal{}).at(dir, temp, 0) //nolint:errcheck // the first error is the one to report
		return err
	}
	if err := unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), name); err != nil {
		(&removal{}).at(dir, temp, 0) //nolint:errcheck // the first error is the one to report
		return err
	}
	return nil
}

const tempPrefix = ".agentsafe-tmp-"

// tempName is the name that a file has until it is complete. It is the same for the same path, so that whoever finishes
// what a crash interrupted meets it and replaces it.
func tempName(name string) string {
	const most = 255
	return tempPrefix + name[:min(len(name), most-len(tempPrefix))]
}

// adjust does without a copy where only mode, owner, attributes or times differ: a process that has the file open keeps
// it, and hard links stay.
func (w *Writer) adjust(s *source, dir *os.File, name string, have *unix.Stat_t) (bool, error) {
	if w.Plain || s.st.Size != have.Size {
		return false, nil
	}
	f, err := NewRoot(dir).OpenFile(name)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	if same, err := equalFiles(s.file, f); err != nil || !same {
		return false, err
	}
	return true, w.finish(s, f, dir, name)
}

func (w *Writer) putDir(s *source, parent *os.File, name string, exists bool) error {
	if !exists {
		mode := s.st.Mode & 0o7777
		if w.Plain {
			mode &= 0o777
		}
		if err := unix.Mkdirat(int(parent.Fd()), name, mode); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if w.Plain && exists {
		// The folder is its owner's: a task changes no modes of what was there.
		return nil
	}
	f, err := NewRoot(parent).openDir(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return w.finish(s, f, parent, name)
}

// create makes the entry under a new name.
func (w *Writer) create(s *source, dst Root, dir *os.File, name, unsafePath string) error {
	switch s.kind {
	case File:
		if s.st.Nlink > 1 && w.link(s, dst, dir, name) {
			return nil
		}
		if err := w.createFile(s, dir, name); err != nil {
			return err
		}
		if s.st.Nlink > 1 {
			if w.links == nil {
				w.links = map[inode]string{}
			}
			w.links[inode{s.st.Dev, s.st.Ino}] = unsafePath
		}
		return nil
	case Symlink:
		if err := unix.Symlinkat(s.target, int(dir.Fd()), name); err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(int(dir.Fd()), name, s.st.Mode, int(s.st.Rdev)); err != nil { //nolint:gosec // the kernel's own number
			return err
		}
	}
	if w.Plain {
		return nil
	}
	if err := unix.Fchownat(int(dir.Fd()), name, int(s.st.Uid), int(s.st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	if s.kind != Symlink {
		if err := chmodNode(dir, name, s.st.Mode); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	return writeAttrs(dir, name, s.attrs)
}

// chmodNode changes the mode of a node by a handle of it: fchmodat(2) would follow the symlink that a task may have put
// there since, from the host's root.
func chmodNode(dir *os.File, name string, mode uint32) error {
	f, err := NewRoot(dir).open(name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != mode&unix.S_IFMT {
		return errors.Join(err, unix.ESTALE)
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), mode&0o7777)
}

// link makes a hard link to the copy of the same file, if there is one and it is still that.
func (w *Writer) link(s *source, dst Root, dir *os.File, name string) bool {
	first, ok := w.links[inode{s.st.Dev, s.st.Ino}]
	if !ok {
		return false
	}
	d, base, err := dst.parent(first)
	if err != nil {
		return false
	}
	defer d.Close()
	return unix.Linkat(int(d.Fd()), base, int(dir.Fd()), name, 0) == nil
}

func (w *Writer) createFile(s *source, dir *os.File, name string) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := copyBytes(f, s.file); err != nil {
		return err
	}
	return w.finish(s, f, dir, name)
}

// finish sets owner, mode, attributes and times of an entry that is open as f.
func (w *Writer) finish(s *source, f, dir *os.File, name string) error {
	fd := int(f.Fd())
	mode := s.st.Mode & 0o7777
	if w.Plain {
		mode &= 0o777
		if err := unix.Fchmod(fd, mode); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != s.st.Uid || st.Gid != s.st.Gid {
		if err := unix.Fchown(fd, int(s.st.Uid), int(s.st.Gid)); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
		st.Mode = 0 // the kernel may have cleared set-id bits
	}
	if st.Mode&0o7777 != mode {
		if err := unix.Fchmod(fd, mode); err != nil {
			return fmt.Errorf("set mode: %w", err)
		}
	}
	if err := writeAttrs(dir, name, s.attrs); err != nil {
		return err
	}
	if s.kind == Dir {
		return nil // its time is that of the last change in it
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, s.st.Mtim}
	if err := unix.UtimesNanoAt(int(dir.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// copyBytes copies a file with its holes: as a clone where the file system can, else in the kernel, else by reading.
func copyBytes(to, from *os.File) error {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return nil
	}
	size, err := unix.Seek(int(from.Fd()), 0, io.SeekEnd)
	if err != nil {
		return err
	}
	for pos := int64(0); pos < size; {
		start := nextData(from, pos)
		if start >= size {
			break
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil || end <= start {
			end = size
		}
		if _, err := to.Seek(start, io.SeekStart); err != nil {
			return err
		}
		// os.File.ReadFrom takes copy_file_range or splice where that works.
		if _, err := from.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(to, io.LimitReader(from, end-start)); err != nil {
			return err
		}
		pos = end
	}
	return to.Truncate(size)
}

// Remove removes the path with all that is below it. What is not there is no error.
func (w *Writer) Remove(dst Root, unsafePath string) error {
	err := w.do(func() error {
		dir, name, err := dst.parent(unsafePath)
		if isMissing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer dir.Close()
		return (&removal{}).at(dir, name, 0)
	})
	if err != nil {
		return fmt.Errorf("remove %q: %w", unsafePath, err)
	}
	return nil
}

// maxDepth bounds the open directories of a removal; a path of MaxPath bytes has no more components.
const maxDepth = MaxPath / 2

// removal counts what it removes.
type removal struct {
	files int
	told  func(files int) // nil for nobody
}

// tellEvery is after how many files somebody is told.
const tellEvery = 1000

func (r *removal) count() {
	if r.files++; r.told != nil && r.files%tellEvery == 0 {
		r.told(r.files)
	}
}

func (r *removal) at(dir *os.File, name string, depth int) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	switch {
	case err == nil || isMissing(err):
		r.count()
		return nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return err
	case depth > maxDepth:
		return ErrTooMuch
	}
	if unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR) == nil {
		r.count()
		return nil
	}
	child, oerr := NewRoot(dir).openDir(name)
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	names, err := readNames(child)
	for i := 0; err == nil && i < len(names); i++ {
		err = r.at(child, names[i], depth+1)
	}
	child.Close()
	if err != nil {
		return err
	}
	r.count()
	return unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
}

// RemoveAll removes everything in a directory. told, if it is not nil, is called now and then with the number of files that
// have been removed.
func RemoveAll(dir Root, told func(files int)) error {
	f, err := dir.openDir("")
	if err != nil {
		return err
	}
	defer f.Close()
	r := &removal{told: told}
	names, err := readNames(f)
	for i := 0; err == nil && i < len(names); i++ {
		err = r.at(f, names[i], 0)
	}
	return err
}

// MakeParents makes the directories above a path in dst that are missing, as they are in like.
func (w *Writer) MakeParents(like, dst Root, unsafePath string) error {
	parent := path.Dir(unsafePath)
	if parent == "." {
		return nil
	}
	if st, err := dst.Lstat(parent); err == nil && kindOf(&st) == Dir {
		return nil
	}
	prefix := ""
	for name := range strings.SplitSeq(parent, "/") {
		prefix = join(prefix, name)
		st, err := dst.Lstat(prefix)
		if err == nil && kindOf(&st) == Dir {
			continue
		}
		if err != nil && !isMissing(err) {
			return err
		}
		if err := w.Put(like, dst, prefix); err != nil {
			return err
		}
	}
	return nil
}
