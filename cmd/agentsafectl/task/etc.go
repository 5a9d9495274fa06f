package task

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Bounds of what is copied out of the host's /etc. What is larger is left out.
const (
	maxEtcFileBytes  = 2 << 20
	maxEtcTotalBytes = 32 << 20
	maxEtcEntries    = 8192
	maxEtcDepth      = 8
)

// etcAllowed are the entries of /etc that programs need and that hold no
// secrets, as path.Match patterns. A directory brings what is below it. Left out
// on purpose, though tempting: profile, profile.d, bash.bashrc, environment
// (tokens get exported there), gitconfig, npmrc, pip.conf, maven/settings.xml,
// apt (credentials of registries), machine-id (it identifies the host).
func etcAllowed() []string {
	return []string{
		// identity and libc
		"debian_version", "fedora-release", "redhat-release", "system-release", "alpine-release", "arch-release",
		"lsb-release", "os-release", "gai.conf", "host.conf", "networks", "protocols", "rpc", "services", "shells",
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-*.path",
		"locale.alias", "locale.conf", "localtime", "timezone", "inputrc", "terminfo", "xattr.conf",
		// certificates and TLS defaults
		"ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates/extracted", "pki/ca-trust/extracted",
		"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "crypto-policies",
		// what packages split off from /usr
		"alternatives", "fonts", "magic", "magic.mime", "mime.types", "mailcap", "perl", "python3", "python3.*",
		"java", "java-*", "maven/m2.conf", "maven/logging", "gradle", "ruby", "R", "ghc", "texmf", "xml", "sgml",
		"ImageMagick-*", "glvnd", "OpenCL", "vim", "nanorc", "debuginfod", "gprofng.rc", "groff",
	}
}

// Etc is what a task gets to see of the host's /etc.
type Etc struct {
	Nodes []Node   // copies, and the mount points of Binds
	Binds []string // directories, relative to /etc, that can be shown as they are
}

// readEtc collects the allowed entries beneath dir, an open /etc. Symbolic links
// are kept as links and never followed. A file that not everybody may read, or
// that holds a private key, is left out. A directory without such files is not
// copied but bound: a mount costs microseconds, a copy of the certificates
// several thousand system calls.
func readEtc(dir *os.Root) (Etc, error) {
	c := etcCollector{dir: dir, made: map[string]bool{"etc": true}}
	for _, pattern := range etcAllowed() {
		matches := []string{pattern}
		if strings.ContainsAny(pattern, "*?[") { // Glob would follow a link, to stat it
			var err error
			if matches, err = fs.Glob(dir.FS(), pattern); err != nil {
				return Etc{}, fmt.Errorf("read /etc: pattern %q: %w", pattern, err)
			}
		}
		for _, m := range matches {
			if err := c.add(m, 0); err != nil {
				return Etc{}, fmt.Errorf("read /etc/%s: %w", m, err)
			}
		}
	}
	return Etc{Nodes: c.nodes, Binds: c.binds}, nil
}

type etcCollector struct {
	dir   *os.Root
	nodes []Node
	binds []string
	made  map[string]bool
	total int64
}

func (c *etcCollector) add(name string, depth int) error {
	if len(c.nodes) >= maxEtcEntries || depth > maxEtcDepth {
		return nil
	}
	info, err := c.dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // this host has none, or it went away meanwhile
	}
	if err != nil {
		return err
	}
	c.parents(path.Join("etc", path.Dir(name)))
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := c.dir.Readlink(name)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, linkNode(path.Join("etc", name), target))
	case info.IsDir():
		return c.addDir(name, info, depth)
	case info.Mode().IsRegular():
		return c.addFile(name, info)
	}
	return nil
}

// parents makes the directories above an allowed entry.
func (c *etcCollector) parents(dir string) {
	if c.made[dir] || dir == "." {
		return
	}
	c.parents(path.Dir(dir))
	c.made[dir] = true
	c.nodes = append(c.nodes, dirNode(dir, 0o755))
}

func (c *etcCollector) addDir(name string, info fs.FileInfo, depth int) error {
	if info.Mode().Perm()&0o005 != 0o005 {
		return nil
	}
	c.parents(path.Join("etc", name))
	if depth == 0 {
		clean, err := cleanTree(filepath.Join(c.dir.Name(), name))
		if err != nil {
			return err
		}
		if clean {
			c.binds = append(c.binds, name)
			return nil
		}
	}
	d, err := c.dir.Open(name)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := c.add(path.Join(name, n), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// cleanTree says whether everybody may read everything beneath dir, and whether
// there is no private key and nothing but files, directories and links.
func cleanTree(dir string) (bool, error) {
	entries := 0
	errUnclean := errors.New("unclean")
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entries++; entries > maxEtcEntries {
			return errUnclean
		}
		if d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode()
		switch {
		case mode.IsDir() && mode.Perm()&0o005 == 0o005:
			return nil
		case !mode.IsRegular() || mode.Perm()&0o004 == 0:
			return errUnclean
		case keyExtension(p):
			data, err := os.ReadFile(p)
			if err == nil && holdsPrivateKey(data) {
				err = errUnclean
			}
			return err
		}
		return nil
	})
	if errors.Is(err, errUnclean) {
		return false, nil
	}
	return err == nil, err
}

// keyExtension says whether a file of this name could hold a PEM key.
func keyExtension(name string) bool {
	switch filepath.Ext(name) {
	case ".pem", ".crt", ".cer", ".key", ".cert":
		return true
	}
	return false
}

func holdsPrivateKey(data []byte) bool { return bytes.Contains(data, []byte("PRIVATE KEY-----")) }

func (c *etcCollector) addFile(name string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o004 == 0 || info.Size() > maxEtcFileBytes || c.total+info.Size() > maxEtcTotalBytes {
		return nil
	}
	f, err := c.dir.Open(name)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxEtcFileBytes))
	f.Close()
	if err != nil {
		return err
	}
	if holdsPrivateKey(data) {
		return nil
	}
	c.total += int64(len(data))
	mode := uint32(0o644)
	if info.Mode().Perm()&0o001 != 0 {
		mode = 0o755
	}
	c.nodes = append(c.nodes, Node{Path: path.Join("etc", name), Mode: mode, Data: data})
	return nil
}

// etcNodes is the task's /etc: the host's allowed entries, and files made here.
func etcNodes(h *Host, u User, name string) []Node {
	out := append([]Node{}, h.Etc.Nodes...)
	out = append(out, nameFiles("etc")...)
	return append(out,
		fileNode("etc/passwd", passwdFor(h.Passwd, u, name)),
		fileNode("etc/group", groupFor(h.Group, u, name)),
		// The host's may name services (sssd, systemd) that are not there.
		fileNode("etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"),
		linkNode("etc/mtab", "/proc/self/mounts"))
}

// firstHumanID is where Debian and Fedora begin with people's accounts.
const firstHumanID = 1000

// passwdFor keeps the accounts of the system and adds the task's own; who else
// has an account here, and their full names, is none of the task's business.
func passwdFor(passwd []byte, u User, name string) string {
	var b strings.Builder
	eachAccount(passwd, 7, func(f []string, id uint32) bool {
		if id < firstHumanID && id != u.UID && f[0] != name || id == 65534 {
			fmt.Fprintf(&b, "%s:x:%s:%s::%s:%s\n", f[0], f[2], f[3], f[5], f[6])
		}
		return false
	})
	fmt.Fprintf(&b, "%s:x:%d:%d::%s:/bin/sh\n", name, u.UID, u.GID, u.Home)
	return b.String()
}

func groupFor(group []byte, u User, name string) string {
	var b strings.Builder
	own := false
	eachAccount(group, 4, func(f []string, id uint32) bool {
		if id < firstHumanID || id == 65534 || id == u.GID {
			own = own || id == u.GID
			fmt.Fprintf(&b, "%s:x:%s:\n", f[0], f[2])
		}
		return false
	})
	if !own {
		fmt.Fprintf(&b, "%s:x:%d:\n", name, u.GID)
	}
	return b.String()
}
