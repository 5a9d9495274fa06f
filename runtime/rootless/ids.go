package rootless

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Map is how the ids of a user namespace appear one level above, in the kernel's order.
type Map []syscall.SysProcIDMap

// maxLines is what the kernel takes of a map; the user's own id is one of them. Source: user_namespaces(7).
const maxLines = 340

// PlanMap maps id 0 to the user's own and the ids from 1 on to the subordinate ones. A range that holds the user's own id
// is left out: the kernel takes no id twice.
func PlanMap(own int, subordinate []Range) Map {
	out := Map{{ContainerID: 0, HostID: own, Size: 1}}
	next := 1
	for _, r := range subordinate {
		const most = 1<<32 - 2
		if len(out) == maxLines || next+r.Count > most {
			break
		}
		if own >= r.First && own-r.First < r.Count {
			continue
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: next, HostID: r.First, Size: r.Count})
		next += r.Count
	}
	return out
}

// Inside translates ids one level above to those of the namespace: a range may come out as several. What is not mapped
// is an error that says so.
func (m Map) Inside(in []syscall.SysProcIDMap) ([]syscall.SysProcIDMap, error) {
	var out []syscall.SysProcIDMap
	for _, want := range in {
		for want.Size > 0 {
			line, ok := m.line(want.HostID)
			if !ok {
				return nil, fmt.Errorf("id %d is neither this user's nor one of the subordinate ids that newuidmap and newgidmap give it: %w", want.HostID, unix.EPERM)
			}
			offset := want.HostID - line.HostID
			size := min(want.Size, line.Size-offset)
			out = append(out, syscall.SysProcIDMap{ContainerID: want.ContainerID, HostID: line.ContainerID + offset, Size: size})
			want.ContainerID, want.HostID, want.Size = want.ContainerID+size, want.HostID+size, want.Size-size
		}
	}
	return out, nil
}

func (m Map) line(outside int) (syscall.SysProcIDMap, bool) {
	for _, l := range m {
		if outside >= l.HostID && outside-l.HostID < l.Size {
			return l, true
		}
	}
	return syscall.SysProcIDMap{}, false
}

// Outside returns what an id of the namespace is one level above.
func (m Map) Outside(inside int) (int, bool) {
	for _, l := range m {
		if inside >= l.ContainerID && inside-l.ContainerID < l.Size {
			return l.HostID + inside - l.ContainerID, true
		}
	}
	return 0, false
}

// Size is the number of ids.
func (m Map) Size() int {
	n := 0
	for _, l := range m {
		n += l.Size
	}
	return n
}

// ReadMap returns a map of this process: "uid_map" or "gid_map".
func ReadMap(name string) (Map, error) { return readMap("self", name) }

// ReadMapOf returns a map of another process's user namespace, whose ids outside are those of this process's.
func ReadMapOf(pid int, name string) (Map, error) { return readMap(strconv.Itoa(pid), name) }

func readMap(process, name string) (Map, error) {
	data, err := os.ReadFile("/proc/" + process + "/" + name)
	if err != nil {
		return nil, fmt.Errorf("read ids: %w", err)
	}
	var out Map
	for line := range strings.Lines(string(data)) {
		var n [3]int
		fields := strings.Fields(line)
		for i := range n {
			if len(fields) != len(n) {
				return nil, fmt.Errorf("parse %s: line %q", name, line)
			}
			if n[i], err = strconv.Atoi(fields[i]); err != nil {
				return nil, fmt.Errorf("parse %s: %w", name, err)
			}
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: n[0], HostID: n[1], Size: n[2]})
	}
	return out, nil
}

// Range are subordinate ids of a user.
type Range struct{ First, Count int }

// ParseSubIDs returns the ranges that a file like /etc/subuid lists for a user, by name (which may be "") or number.
// Lines that are none are passed over, as newuidmap does. Source: subuid(5).
func ParseSubIDs(text, name string, uid int) []Range {
	var out []Range
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(fields) != 3 || fields[0] == "" || fields[0] != name && fields[0] != strconv.Itoa(uid) {
			continue
		}
		const bits = 32
		first, err1 := strconv.ParseUint(fields[1], 10, bits)
		count, err2 := strconv.ParseUint(fields[2], 10, bits)
		if err1 != nil || err2 != nil || count == 0 || first+count > 1<<bits-1 {
			continue
		}
		out = append(out, Range{int(first), int(count)}) //nolint:gosec // 32 bits
	}
	return out
}

type user struct{ name, home string }

// account looks a uid up in the host's passwd; the zero user if nobody has it.
func account(passwd string, uid int) user {
	want := strconv.Itoa(uid)
	for line := range strings.Lines(passwd) {
		const columns, idColumn, homeColumn = 7, 2, 5
		fields := strings.Split(line, ":")
		if len(fields) == columns && fields[idColumn] == want {
			return user{fields[0], fields[homeColumn]}
		}
	}
	return user{}
}
