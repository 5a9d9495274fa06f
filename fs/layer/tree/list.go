package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Op says what a change does to a path.
type Op string

// The operations.
const (
	Add    Op = "add"
	Modify Op = "modify" // other content, or another kind of file
	Delete Op = "delete" // of a directory: with all that is below
	Meta   Op = "meta"   // mode, owner or attributes alone
	Times  Op = "times"  // the time of modification alone
)

// Change is one difference between two trees.
type Change struct {
	Path string `json:"path"` // relative; bytes as the kernel has them
	Op   Op     `json:"op"`
	Kind Kind   `json:"kind"` // of a deleted path: what it was
	Was  Kind   `json:"was,omitempty"`
	// Old and New are what was and what is there, as far as it exists.
	Old Attr `json:"old,omitzero"`
	New Attr `json:"new,omitzero"`
	// Blocks is what the file takes on its disk, in bytes.
	Blocks int64 `json:"-"`
	// CopiedUp says that the entry came from below and was changed, so that it existed there when it was.
	CopiedUp bool `json:"copiedUp,omitempty"`
}

// Attr is the part of stat(2) that belongs to a file.
type Attr struct {
	Mode  uint32 `json:"mode"` // permission bits with set-id and sticky
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"` // ns
}

// Limits of what is read from a tree.
const (
	MaxEntries = 2_000_000
	MaxPath    = 4000 // bytes; the kernel takes 4095 in one call
)

// ErrTooMuch is a tree beyond MaxEntries or MaxPath.
var ErrTooMuch = errors.New("the layer is larger than agentsafe reads")

// ListOptions refine List.
type ListOptions struct {
	// Whole are directories that are compared as wholes: what lower has in them and upper does not is a deletion, as if
	// they were opaque.
	Whole map[string]bool
	// Below limits the listing to paths at or below one of these; nil is all.
	Below []string
	// AnyOverlay says that upper is no layer, so that attributes of overlays in it mean nothing.
	AnyOverlay bool
}

// List returns how the merged view of upper over lower differs from lower, sorted by path, parents first. Its cost grows
// with upper, not with lower. An entry that was copied up and is as below is no change.
func List(upper, lower Root, o ListOptions) ([]Change, error) {
	l := lister{o: o}
	up, err := upper.openDir("")
	if err != nil {
		return nil, fmt.Errorf("read layer: %w", err)
	}
	defer up.Close()
	var low *os.File
	if lower.dir != nil {
		if low, err = lower.openDir(""); err != nil {
			return nil, fmt.Errorf("read lower tree: %w", err)
		}
		defer low.Close()
	}
	if err := l.dir(up, low, "", o.Whole[""]); err != nil {
		return nil, err
	}
	return l.out, nil
}

type lister struct {
	o       ListOptions
	out     []Change
	entries int
}

// dir compares two directories; low is nil if there is nothing below.
func (l *lister) dir(up, low *os.File, prefix string, opaque bool) error {
	names, err := readNames(up)
	if err != nil {
		return fmt.Errorf("read directory %q: %w", prefix, err)
	}
	if l.entries += len(names); l.entries > MaxEntries {
		return fmt.Errorf("more than %d entries: %w", MaxEntries, ErrTooMuch)
	}
	for _, name := range names {
		p := join(prefix, name)
		if len(p) > MaxPath {
			return fmt.Errorf("a path of more than %d bytes: %w", MaxPath, ErrTooMuch)
		}
		if !l.wanted(p) {
			continue
		}
		if err := l.entry(up, low, name, p); err != nil {
			return fmt.Errorf("%q: %w", p, err)
		}
	}
	if !opaque || low == nil {
		return nil
	}
	return l.hidden(low, names, prefix)
}

// hidden lists what an opaque directory deletes: what is below and not in it.
func (l *lister) hidden(low *os.File, names []string, prefix string) error {
	below, err := readNames(low)
	if err != nil {
		return err
	}
	for _, name := range below {
		p := join(prefix, name)
		if _, has := slices.BinarySearch(names, name); has || !l.wanted(p) {
			continue
		}
		st, err := lstatAt(low, name)
		if isMissing(err) {
			continue
		}
		if err != nil {
			return err
		}
		if k := kindOf(&st); k != Whiteout {
			l.add(Change{Path: p, Op: Delete, Kind: k, Old: attrOf(&st)})
		}
	}
	return nil
}

func (l *lister) add(c Change) { l.out = append(l.out, c) }

// wanted reports whether a path is at, below or on the way to one that was asked for.
func (l *lister) wanted(p string) bool {
	if l.o.Below == nil {
		return true
	}
	return slices.ContainsFunc(l.o.Below, func(b string) bool {
		return b == "" || p == b || strings.HasPrefix(p, b+"/") || strings.HasPrefix(b, p+"/")
	})
}

func (l *lister) entry(up, low *os.File, name, p string) error {
	st, err := lstatAt(up, name)
	if isMissing(err) {
		return nil // removed while we read
	}
	if err != nil {
		return err
	}
	var was unix.Stat_t
	exists := false
	if low != nil {
		was, err = lstatAt(low, name)
		if err != nil && !isMissing(err) {
			return err
		}
		exists = err == nil && kindOf(&was) != Whiteout
	}
	const sector = 512
	c := Change{Path: p, Kind: kindOf(&st), New: attrOf(&st), Blocks: st.Blocks * sector}
	if exists {
		c.Was, c.Old = kindOf(&was), attrOf(&was)
	}
	if c.Kind == Whiteout {
		if exists {
			l.add(Change{Path: p, Op: Delete, Kind: c.Was, Old: c.Old})
		}
		return nil
	}
	a, err := readAttrs(up, name, !l.o.AnyOverlay)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.CopiedUp = a.origin
	switch {
	case !exists:
		c.Op = Add
	case c.Was != c.Kind:
		c.Op = Modify
	default:
		if c.Op, err = compare(up, low, name, &st, &was, a.values); err != nil {
			return err
		}
	}
	if c.Op != "" {
		l.add(c)
	}
	if c.Kind != Dir {
		return nil
	}
	return l.descend(up, low, name, p, exists && c.Was == Dir, a.opaque || l.o.Whole[p])
}

func (l *lister) descend(up, low *os.File, name, p string, merged, opaque bool) error {
	child, err := NewRoot(up).openDir(name)
	if Missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer child.Close()
	if !merged {
		return l.dir(child, nil, p, false)
	}
	below, err := NewRoot(low).openDir(name)
	if Missing(err) {
		return l.dir(child, nil, p, false)
	}
	if err != nil {
		return err
	}
	defer below.Close()
	return l.dir(child, below, p, opaque)
}

// compare returns how two entries of one kind differ; "" if they don't.
func compare(up, low *os.File, name string, st, was *unix.Stat_t, values map[string]string) (Op, error) {
	same, err := sameContent(up, low, name, st, was)
	if err != nil {
		return "", err
	}
	if !same {
		return Modify, nil
	}
	old, err := readAttrs(low, name, false)
	if err != nil {
		return "", err
	}
	const bits = 0o7777
	if st.Mode&bits != was.Mode&bits || st.Uid != was.Uid || st.Gid != was.Gid || !maps.Equal(values, old.values) {
		return Meta, nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mtim != was.Mtim {
		return Times, nil
	}
	return "", nil
}

func sameContent(up, low *os.File, name string, st, was *unix.Stat_t) (bool, error) {
	switch kindOf(st) {
	case File:
		if st.Dev == was.Dev && st.Ino == was.Ino {
			return true, nil
		}
		if st.Size != was.Size {
			return false, nil
		}
		return sameBytes(up, low, name)
	case Symlink:
		a, err := readlinkAt(up, name)
		if err != nil {
			return false, err
		}
		b, err := readlinkAt(low, name)
		return a == b, err
	case Device:
		return st.Rdev == was.Rdev, nil
	default:
		return true, nil
	}
}

func sameBytes(up, low *os.File, name string) (bool, error) {
	a, err := NewRoot(up).OpenFile(name)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := NewRoot(low).OpenFile(name)
	if err != nil {
		return false, err
	}
	defer b.Close()
	return equalFiles(a, b)
}

// equalFiles compares two files. Where both have a hole nothing is read, so that a sparse terabyte costs nothing.
func equalFiles(a, b *os.File) (bool, error) {
	// Room for a whole small file and the end of it: most are small, and memory that is touched for the first time costs more
	// than reading them.
	chunk := int64(128 << 10)
	if size, err := unix.Seek(int(a.Fd()), 0, io.SeekEnd); err == nil {
		chunk = min(chunk, size+1)
	}
	x, y := make([]byte, chunk), make([]byte, chunk)
	for pos := int64(0); ; {
		next := min(nextData(a, pos), nextData(b, pos))
		if next == noData {
			return true, nil
		}
		n, err := a.ReadAt(x, next)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		m, err := b.ReadAt(y, next)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if n != m || !bytes.Equal(x[:n], y[:m]) {
			return false, nil
		}
		if n == 0 {
			return true, nil
		}
		if pos = next + int64(n); int64(n) < chunk { // the end of both
			return true, nil
		}
	}
}

const noData = int64(1<<63 - 1)

// nextData returns where the next byte that is no hole can be.
func nextData(f *os.File, pos int64) int64 {
	at, err := unix.Seek(int(f.Fd()), pos, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return noData
	}
	if err != nil {
		return pos // a file system without holes
	}
	return at
}

func attrOf(st *unix.Stat_t) Attr {
	return Attr{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, Size: st.Size, Mtime: st.Mtim.Nano()}
}

// readNames returns the names in a directory, sorted. dir must be open for reading.
func readNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(MaxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > MaxEntries {
		return nil, fmt.Errorf("a directory of more than %d entries: %w", MaxEntries, ErrTooMuch)
	}
	slices.Sort(names)
	return names, nil
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "/" + name
}

// ChangedSince reports whether a path, or anything below it, was changed after a time in ns of the file system's clock.
// What is not there was not.
func ChangedSince(r Root, unsafePath string, since int64) (bool, error) {
	st, err := r.Lstat(unsafePath)
	if Missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st.Ctim.Nano() > since || kindOf(&st) != Dir {
		return st.Ctim.Nano() > since, nil
	}
	dir, err := r.openDir(unsafePath)
	if err != nil {
		return false, err
	}
	names, err := readNames(dir)
	dir.Close()
	for i := 0; err == nil && i < len(names); i++ {
		var changed bool
		if changed, err = ChangedSince(r, join(unsafePath, names[i]), since); changed {
			return true, nil
		}
	}
	return false, err
}
