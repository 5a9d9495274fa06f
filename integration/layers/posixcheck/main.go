package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: posixcheck prepare|run DIR")
		os.Exit(2)
	}
	unix.Umask(0o022)
	var err error
	for _, c := range checks() {
		dir := filepath.Join(os.Args[2], strings.ReplaceAll(c.name, " ", "-"))
		if os.Args[1] == "prepare" {
			err = errors.Join(err, prepare(dir))
			continue
		}
		if e := os.Chdir(dir); e != nil {
			err = errors.Join(err, e)
			continue
		}
		fmt.Printf("%s: %s\n", c.name, c.run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// prepare makes what every check finds: old files, so that a change of times shows.
func prepare(dir string) error {
	big := strings.Repeat("0123456789abcdef", 4096)
	err := os.MkdirAll(filepath.Join(dir, "d/deep"), 0o755)
	for name, data := range map[string]string{"f": "hello\n", "g": "other\n", "d/x": "x\n", "d/deep/y": "y\n", "big": big, "h1": "linked\n"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644))
	}
	err = errors.Join(err, os.Mkdir(filepath.Join(dir, "empty"), 0o755), os.Link(filepath.Join(dir, "h1"), filepath.Join(dir, "h2")),
		os.Symlink("f", filepath.Join(dir, "l")), os.Symlink("loop", filepath.Join(dir, "loop")), unix.Mkfifo(filepath.Join(dir, "p"), 0o644))
	for _, name := range []string{"f", "g", "d/x", "big", "h1", "d", "empty", "."} {
		old := []unix.Timeval{{Sec: 1e9}, {Sec: 1e9}}
		err = errors.Join(err, unix.Utimes(filepath.Join(dir, name), old))
	}
	return err
}

// answer is an errno by its name, or what there is to say if there is none.
func answer(err error, more ...any) string {
	if no, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(no)
	}
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace("ok " + fmt.Sprintln(more...))
}

// look describes a path: kind, mode, links, size, owner, and whether it was changed after it was prepared.
func look(p string) string {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return p + " " + answer(err)
	}
	size, links := st.Size, st.Nlink
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		size, links = 0, 0 // each file system counts them in its own way
	}
	age := "new"
	if st.Mtim.Sec <= 1e9 {
		age = "old"
	}
	return fmt.Sprintf("%s %o links=%d size=%d %d:%d %s", p, st.Mode, links, size, st.Uid, st.Gid, age)
}

// names lists a directory.
func names(p string) string {
	f, err := os.Open(p)
	if err != nil {
		return answer(err)
	}
	defer f.Close()
	list, err := f.Readdirnames(-1)
	sort.Strings(list)
	return answer(err, strings.Join(list, ","))
}

func data(p string) string {
	b, err := os.ReadFile(p)
	if len(b) > 40 {
		b = append(b[:40], "..."...)
	}
	return answer(err, fmt.Sprintf("%q", b))
}

func write(p, s string, flags int) error {
	fd, err := unix.Open(p, unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o666)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(s))
	return errors.Join(err, unix.Close(fd))
}

// all puts answers on one line.
func all(parts ...string) string { return strings.Join(parts, "; ") }
