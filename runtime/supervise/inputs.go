package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
)

// Bounds of the input artefacts of one container: start waits for their digests.
const (
	maxInputs     = 64
	maxInputFiles = 100_000
	maxInputBytes = 1 << 30
	maxInputTime  = 15 * time.Second
)

// digestInputs reads the files and directories that the annotation agentsafe.dev/inputs names, as the container sees them
// before its program runs, when its root file system is complete. What can't be read is an error: somebody relies on it.
func (s *Supervisor) digestInputs() ([]audit.Input, error) {
	list := s.c.State().Annotations[profiles.AnnotationPrefix+profiles.KeyInputs]
	if list == "" || s.evidence == nil {
		return nil, nil
	}
	root, err := os.OpenFile("/proc/"+strconv.Itoa(s.c.State().InitPID)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root file system of container %q: %w", s.c.ID(), err)
	}
	defer root.Close()
	if gone(s.init) {
		return nil, fmt.Errorf("open root file system of container %q: %w", s.c.ID(), unix.ESRCH) // another process's
	}
	d := digester{deadline: time.Now().Add(maxInputTime)}
	var out []audit.Input
	for unsafePath := range strings.SplitSeq(list, ",") {
		if unsafePath = strings.TrimSpace(unsafePath); !path.IsAbs(unsafePath) || len(out) == maxInputs {
			return nil, fmt.Errorf("annotation %s%s: want at most %d absolute paths with commas between", profiles.AnnotationPrefix, profiles.KeyInputs, maxInputs)
		}
		in, err := d.input(root, unsafePath)
		if err != nil {
			return nil, fmt.Errorf("annotation %s%s: %s: %w", profiles.AnnotationPrefix, profiles.KeyInputs, unsafePath, err)
		}
		out = append(out, in)
	}
	return out, nil
}

// digester adds up what is read for one container.
type digester struct {
	files    int
	bytes    int64
	deadline time.Time
}

func (d *digester) input(root *os.File, unsafePath string) (audit.Input, error) {
	in := audit.Input{Path: unsafePath}
	f, err := safepath.OpenInRoot(root, unsafePath, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return in, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return in, err
	}
	before := *d
	sum := sha256.New()
	switch {
	case st.Mode().IsRegular():
		err = d.file(sum, f)
	case st.IsDir():
		in.Directory = true
		err = d.directory(sum, f)
	default:
		err = errors.New("neither a file nor a directory")
	}
	in.SHA256, in.Files, in.Bytes = hex.EncodeToString(sum.Sum(nil)), d.files-before.files, d.bytes-before.bytes
	return in, err
}

func (d *digester) file(sum hash.Hash, f io.Reader) error {
	if d.files++; d.files > maxInputFiles {
		return fmt.Errorf("more than %d files", maxInputFiles)
	}
	buf := make([]byte, 256<<10)
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		d.bytes += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case d.bytes > maxInputBytes:
			return fmt.Errorf("more than %d bytes", maxInputBytes)
		case time.Now().After(d.deadline):
			return fmt.Errorf("not read within %v", maxInputTime)
		}
	}
}

// directory hashes what `sha256sum` prints for the regular files below a directory, sorted by name: so an auditor can
// repeat it with
//
//	(cd DIR && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum
func (d *digester) directory(sum hash.Hash, f *os.File) error {
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return err
	}
	defer root.Close()
	var names []string
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			names = append(names, name)
		}
		if err == nil && len(names) > maxInputFiles {
			err = fmt.Errorf("more than %d files", maxInputFiles)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		file, err := root.OpenFile(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		one := sha256.New()
		err = d.file(one, file)
		file.Close()
		if err != nil {
			return err
		}
		io.WriteString(sum, sumLine(hex.EncodeToString(one.Sum(nil)), "./"+name)) //nolint:errcheck // a hash takes everything
	}
	return nil
}

// sumLine is a line of sha256sum's. Source: coreutils, cksum invocation: escaped names begin with a backslash.
func sumLine(sum, name string) string {
	escaped := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`).Replace(name)
	if escaped != name {
		sum = `\` + sum
	}
	return sum + "  " + escaped + "\n"
}
