package idle

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is what /proc/self/smaps tells of a part of the address space.
type mapping struct {
	from, to uintptr
	inode    uint64
	writable bool
	private  bool // has pages of its own, that are nowhere else
}

// dropProgram unmaps the pages of the process's own program: those that can be had again from the page cache.
func dropProgram() error {
	var program unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &program); err != nil {
		return fmt.Errorf("look at the program: %w", err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("list mappings: %w", err)
	}
	defer f.Close()
	list, err := parseMappings(f)
	if err != nil {
		return err
	}
	for _, m := range list {
		// The number alone may be another file system's file: its pages come back from the cache likewise.
		if m.inode != program.Ino || m.writable || m.private {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give %x-%x back: %w", m.from, m.to, errno)
		}
	}
	return nil
}

// parseMappings reads the format of proc_pid_smaps(5).
func parseMappings(r io.Reader) ([]mapping, error) {
	var list []mapping
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Bytes()
		first, _, _ := bytes.Cut(line, []byte(" "))
		if name, isValue := bytes.CutSuffix(first, []byte(":")); isValue {
			if len(list) == 0 {
				return nil, fmt.Errorf("list mappings: %q before the first", line)
			}
			value := line[len(first):]
			if string(name) == "Anonymous" { // not Private_Dirty, which the pages of a file just written are, too
				list[len(list)-1].private = string(bytes.TrimSpace(value)) != "0 kB"
			}
			continue
		}
		m, err := parseMapping(string(line))
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list mappings: %w", err)
	}
	return list, nil
}

// parseMapping reads "from-to rwxp offset major:minor inode path".
func parseMapping(line string) (mapping, error) {
	const least = 5 // fields before the path
	fields := strings.Fields(line)
	if len(fields) < least || len(fields[1]) < 2 {
		return mapping{}, fmt.Errorf("list mappings: %q is none", line)
	}
	from, to, _ := strings.Cut(fields[0], "-")
	first, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	inode, err3 := strconv.ParseUint(fields[4], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || end < first {
		return mapping{}, fmt.Errorf("list mappings: %q is none", line)
	}
	return mapping{from: uintptr(first), to: uintptr(end), inode: inode, writable: fields[1][1] == 'w'}, nil
}
