package image

import (
	"context"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Names below the cache directory.
const (
	layersDir = "layers" // HEX of the diff id: an unpacked layer
	linksDir  = "l"      // short names for layers, as one page of mount options is not much
	tempDir   = "tmp"    // what is being unpacked
	lockFile  = "lock"
	linkChars = 12 // 60 bits; a collision is detected, see link
)

// Store is a cache of unpacked layers.
type Store struct {
	dir  string
	root *os.Root
	lim  Limits
}

// OpenStore opens the cache in dir, an absolute path, and makes it (mode 0700)
// if it is not there. The caller closes the Store.
func OpenStore(dir string, lim Limits) (*Store, error) {
	if !filepath.IsAbs(dir) || strings.ContainsAny(dir, ",:\\") {
		return nil, fmt.Errorf("open image cache %q: not an absolute path free of `,`, `:` and `\\`", dir)
	}
	if err := makeAll(dir); err != nil {
		return nil, fmt.Errorf("create image cache %q: %w", dir, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open image cache: %w", err)
	}
	s := &Store{dir: dir, root: root, lim: lim.withDefaults()}
	for _, sub := range []string{layersDir, linksDir, tempDir} {
		if err := root.Mkdir(sub, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			s.Close()
			return nil, fmt.Errorf("create image cache: %w", err)
		}
	}
	return s, nil
}

// makeAll makes dir and its parents through handles of the host's root.
func makeAll(dir string) error {
	host, err := os.OpenRoot("/")
	if err != nil {
		return err
	}
	defer host.Close()
	return host.MkdirAll(strings.TrimPrefix(filepath.Clean(dir), "/"), 0o700)
}

// Close closes the handle of the cache.
func (s *Store) Close() error { return s.root.Close() }

// TempDir returns a directory of the cache for files that have no name.
func (s *Store) TempDir() string { return filepath.Join(s.dir, tempDir) }

// Unpack makes every layer of img present in the cache and returns the short
// paths of their directories, lowest first. Layers that are there already are
// not read again. One process unpacks at a time.
func (s *Store) Unpack(ctx context.Context, a *Archive, img *Image) (paths []string, _ Unpacked, err error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, Unpacked{}, err
	}
	defer unlock()
	var total Unpacked
	for i, l := range img.Layers {
		got, err := s.layer(ctx, a, l)
		if err != nil {
			return nil, total, fmt.Errorf("unpack layer %d (%s): %w", i, l.DiffID, err)
		}
		total.Entries += got.Entries
		total.Bytes += got.Bytes
		total.SkippedDevices += got.SkippedDevices
		short, err := s.link(l.DiffID)
		if err != nil {
			return nil, total, err
		}
		paths = append(paths, filepath.Join(s.dir, short))
	}
	return paths, total, nil
}

// lock takes the cache for this process, and removes what a crash left while
// another process held it.
func (s *Store) lock() (unlock func(), err error) {
	f, err := s.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock image cache: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock image cache: %w", err)
	}
	left, err := s.root.Open(tempDir)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("clean image cache: %w", err)
	}
	defer left.Close()
	names, err := left.Readdirnames(-1)
	for _, n := range names {
		err = errors.Join(err, s.root.RemoveAll(filepath.Join(tempDir, n)))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("clean image cache: %w", err)
	}
	return func() { f.Close() }, nil
}

// layer unpacks one layer unless it is in the cache.
func (s *Store) layer(ctx context.Context, a *Archive, l Layer) (Unpacked, error) {
	final := filepath.Join(layersDir, l.DiffID.Encoded())
	if _, err := s.root.Lstat(final); err == nil {
		return Unpacked{}, nil
	}
	temp := filepath.Join(tempDir, l.DiffID.Encoded())
	if err := s.root.Mkdir(temp, 0o755); err != nil {
		return Unpacked{}, err
	}
	// The umask may have taken bits away, and this becomes the container's "/".
	if err := s.root.Chmod(temp, 0o755); err != nil {
		return Unpacked{}, err
	}
	got, err := unpack(ctx, a, l, filepath.Join(s.dir, temp), s.lim)
	if err == nil {
		// Before the rename: after a power cut a layer in place must be whole.
		err = s.sync()
	}
	if err == nil {
		err = s.root.Rename(temp, final)
	}
	if err != nil {
		return got, errors.Join(err, s.root.RemoveAll(temp))
	}
	return got, nil
}

func (s *Store) sync() error {
	d, err := s.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// unpack writes the layer into dir, which must be empty, private and beneath
// nothing that others can write.
func unpack(ctx context.Context, a *Archive, l Layer, dir string, lim Limits) (Unpacked, error) {
	stored, err := a.open(l.name)
	if err != nil {
		return Unpacked{}, err
	}
	blob := digest.SHA256.Digester()
	in, err := decompress(io.TeeReader(stored, blob.Hash()))
	if err != nil {
		return Unpacked{}, fmt.Errorf("decompress: %w", err)
	}
	defer in.Close()
	// Headers and padding come on top of the file bytes that the filter counts.
	streamLimit := lim.LayerBytes + int64(lim.LayerEntries)*1024
	diff := digest.SHA256.Digester()
	plain := io.TeeReader(&limitReader{r: in, left: streamLimit, what: "layer stream bytes", limit: streamLimit}, diff.Hash())
	filter := layerFilter{lim: lim}
	_, err = archive.Apply(ctx, dir, plain,
		archive.WithFilter(filter.check), archive.WithConvertWhiteout(archive.OverlayConvertWhiteout))
	if err != nil {
		return filter.seen, err
	}
	// The digest covers what stands behind the end-of-archive mark, too.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return filter.seen, err
	}
	if got := diff.Digest(); got != l.DiffID {
		return filter.seen, &DigestError{What: "layer contents", Want: l.DiffID, Got: got}
	}
	if l.blob != "" {
		if _, err := io.Copy(blob.Hash(), stored); err != nil {
			return filter.seen, err
		}
		if got := blob.Digest(); got != l.blob {
			return filter.seen, &DigestError{What: l.name, Want: l.blob, Got: got}
		}
	}
	return filter.seen, nil
}

// link returns the short name of a layer, relative to the cache.
func (s *Store) link(diffID digest.Digest) (string, error) {
	raw, err := hex.DecodeString(diffID.Encoded())
	if err != nil {
		return "", fmt.Errorf("link layer: %w", err)
	}
	short := filepath.Join(linksDir, base32.StdEncoding.EncodeToString(raw)[:linkChars])
	target := filepath.Join("..", layersDir, diffID.Encoded())
	err = s.root.Symlink(target, short)
	if errors.Is(err, os.ErrExist) {
		var got string
		if got, err = s.root.Readlink(short); err == nil && got != target {
			err = fmt.Errorf("%q stands for another layer, %q", short, got)
		}
	}
	if err != nil {
		return "", fmt.Errorf("link layer: %w", err)
	}
	return short, nil
}
