package image

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAccountFile bounds /etc/passwd and /etc/group of an image (CVE-2026-47262:
// a group file without end).
const maxAccountFile = 1 << 20

// User is who an image's process runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
	Name     string   // empty if the image does not know the id
	Home     string   // absolute; "/" if the image does not know it
}

// LookupUser resolves what an image or a caller put as user, `USER[:GROUP]`,
// against the account files beneath root, an open directory that stays the
// caller's. A part made of digits is an id and never a name (CVE-2016-3697: an
// account called "1000" gave uid 0). An empty text is 0:0.
func LookupUser(root *os.File, text string) (User, error) {
	passwd, err := readAccounts(root, "etc/passwd")
	if err != nil {
		return User{}, err
	}
	group, err := readAccounts(root, "etc/group")
	if err != nil {
		return User{}, err
	}
	u, err := resolveUser(text, passwd, group)
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", text, err)
	}
	return u, nil
}

// readAccounts returns the file's bytes, or nothing if there is no such file.
func readAccounts(root *os.File, name string) ([]byte, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(int(root.Fd()), name, &how)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open /%s of the image: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat /%s of the image: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("/%s of the image: not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxAccountFile+1))
	if err != nil {
		return nil, fmt.Errorf("read /%s of the image: %w", name, err)
	}
	if len(data) > maxAccountFile {
		return nil, fmt.Errorf("/%s of the image: %w", name, &LimitError{What: "bytes", Limit: maxAccountFile})
	}
	return data, nil
}

// resolveUser is the pure half of LookupUser.
func resolveUser(text string, passwd, group []byte) (User, error) {
	userPart, groupPart, hasGroup := strings.Cut(text, ":")
	if userPart == "" {
		userPart = "0"
	}
	u := User{Home: "/"}
	uid, numeric, err := parseID(userPart)
	if err != nil {
		return User{}, err
	}
	found := eachAccount(passwd, 7, func(f []string) bool {
		entryUID, ok1 := accountID(f[2])
		entryGID, ok2 := accountID(f[3])
		if !ok1 || !ok2 || (numeric && entryUID != uid) || (!numeric && f[0] != userPart) {
			return false
		}
		u.UID, u.GID, u.Name = entryUID, entryGID, f[0]
		if strings.HasPrefix(f[5], "/") {
			u.Home = f[5]
		}
		return true
	})
	switch {
	case !found && !numeric:
		return User{}, errors.New("no such account in the image's /etc/passwd")
	case !found:
		u.UID = uid
	}
	if hasGroup {
		if u.GID, err = resolveGroup(groupPart, group); err != nil {
			return User{}, err
		}
		return u, nil // a named group stands alone, as in Docker
	}
	u.Groups = groupsOf(u.Name, u.GID, group)
	return u, nil
}

func resolveGroup(text string, group []byte) (uint32, error) {
	gid, numeric, err := parseID(text)
	if err != nil {
		return 0, fmt.Errorf("group: %w", err)
	}
	if numeric {
		return gid, nil
	}
	if !eachAccount(group, 4, func(f []string) bool {
		id, ok := accountID(f[2])
		gid = id
		return ok && f[0] == text
	}) {
		return 0, fmt.Errorf("group %q: not in the image's /etc/group", text)
	}
	return gid, nil
}

func groupsOf(name string, primary uint32, group []byte) []uint32 {
	const maxGroups = 64
	var out []uint32
	if name == "" {
		return nil
	}
	eachAccount(group, 4, func(f []string) bool {
		id, ok := accountID(f[2])
		if !ok || id == primary {
			return false
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if member == name {
				out = append(out, id)
				break
			}
		}
		return len(out) >= maxGroups
	})
	return out
}

// parseID tells an id from a name. Digits only, so that "+0", "0x0" and " 0"
// are names, which then don't exist.
func parseID(s string) (id uint32, numeric bool, err error) {
	if s == "" {
		return 0, false, errors.New("empty name")
	}
	if strings.Trim(s, "0123456789") != "" {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > maxID {
		return 0, false, fmt.Errorf("id %s out of range", s) // CVE-2024-40635
	}
	return uint32(n), true, nil
}

// accountID reads the id column of an account file.
func accountID(s string) (uint32, bool) {
	id, numeric, err := parseID(s)
	return id, numeric && err == nil
}

// eachAccount calls f with the columns of each well-formed line until it
// returns true, and says whether it did.
func eachAccount(data []byte, columns int, f func([]string) bool) bool {
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, maxAccountFile+1)
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		if fields := strings.Split(line, ":"); len(fields) == columns && fields[0] != "" && f(fields) {
			return true
		}
	}
	return false
}
