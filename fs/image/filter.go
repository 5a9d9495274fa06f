package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"strings"
)

const (
	xattrRecord    = "SCHILY.xattr."
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	maxPathBytes   = 4095
	maxNameBytes   = 255
	maxID          = 1<<32 - 2 // -1 means "leave as it is" to chown
)

// Unpacked says what a layer held.
type Unpacked struct {
	Entries        int
	Bytes          int64 // of file contents
	SkippedDevices int   // device nodes left out
}

// layerFilter decides about each header of a layer before anything is written.
type layerFilter struct {
	lim  Limits
	seen Unpacked
}

// check says whether the entry is to be unpacked. It drops extended attributes
// that a layer has no say in from h. An error ends the unpacking.
func (f *layerFilter) check(h *tar.Header) (bool, error) {
	f.seen.Entries++
	if f.seen.Entries > f.lim.LayerEntries {
		return false, &LimitError{What: "layer entries", Limit: int64(f.lim.LayerEntries)}
	}
	// A sparse file of some hundred bytes can announce terabytes, and they
	// would be written: count what the header says, not what the stream has.
	if h.Size < 0 || h.Size > f.lim.LayerBytes-f.seen.Bytes {
		return false, &LimitError{What: "layer bytes", Limit: f.lim.LayerBytes}
	}
	f.seen.Bytes += h.Size
	if err := checkHeader(h); err != nil {
		return false, fmt.Errorf("layer entry %q: %w", h.Name, err)
	}
	switch h.Typeflag {
	case tar.TypeChar, tar.TypeBlock:
		f.seen.SkippedDevices++
		return false, nil
	}
	base := path.Base(h.Name)
	// What aufs kept for itself (.wh..wh.aufs, .wh..wh.plnk): nobody's files.
	if strings.HasPrefix(base, whiteoutPrefix+whiteoutPrefix) && base != opaqueMarker {
		return false, nil
	}
	return true, nil
}

// checkHeader holds the rules that need no count.
func checkHeader(h *tar.Header) error {
	if err := checkPath(h.Name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeFifo, tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader:
	case tar.TypeSymlink:
		// Where it points does not matter: it is only followed inside the
		// container, or beneath the root by openat2.
		if h.Linkname == "" || len(h.Linkname) > maxPathBytes || strings.ContainsRune(h.Linkname, 0) {
			return errors.New("symbolic link with an empty, over-long or broken target")
		}
	case tar.TypeLink:
		if h.Linkname == "" {
			return errors.New("hard link without a target")
		}
		if err := checkPath(h.Linkname); err != nil {
			return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
		}
	default:
		return fmt.Errorf("type %q is not for layers", h.Typeflag)
	}
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		// CVE-2024-40635: an id past 2^31 became 0.
		return fmt.Errorf("owner %d:%d out of range", h.Uid, h.Gid)
	}
	return checkAttributes(h.PAXRecords)
}

func checkPath(name string) error {
	if len(name) > maxPathBytes || strings.ContainsRune(name, 0) {
		return errors.New("name over-long or with a NUL byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return errors.New("name climbs")
		case len(part) > maxNameBytes:
			return fmt.Errorf("name component longer than %d bytes", maxNameBytes)
		}
		// Whiteouts remove dir + the rest: ".wh..." would be dir/"..".
		switch target, ok := strings.CutPrefix(part, whiteoutPrefix); {
		case ok && (target == "" || target == "." || target == ".."):
			return errors.New("whiteout of nothing")
		}
	}
	return nil
}

// checkAttributes keeps user.* and file capabilities (which no_new_privs and
// nosuid leave without effect, but programs look at them) and drops the rest.
func checkAttributes(records map[string]string) error {
	for key := range records {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok {
			continue
		}
		switch {
		case strings.HasPrefix(name, "trusted.overlay."), strings.HasPrefix(name, "user.overlay."):
			return fmt.Errorf("attribute %s: overlayfs would follow it", name)
		case strings.HasPrefix(name, "user."), name == "security.capability":
		default:
			delete(records, key)
		}
	}
	return nil
}
