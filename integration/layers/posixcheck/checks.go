package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

type check struct {
	name string
	run  func() string
}

func checks() []check {
	var out []check
	for _, list := range [][]check{renames(), links(), files(), modes(), directories(), special()} {
		out = append(out, list...)
	}
	return out
}

func renames() []check {
	rename := func(a, b string) string { return answer(unix.Rename(a, b)) }
	rename2 := func(a, b string, flags uint) string {
		return answer(unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, flags))
	}
	return []check{
		{"rename a file", func() string { return all(rename("f", "n"), look("n"), look("f"), data("l")) }},
		{"rename over a file", func() string { return all(rename("f", "g"), data("g"), names(".")) }},
		{"rename over itself", func() string { return all(rename("f", "f"), data("f")) }},
		{"rename over a hard link", func() string { return all(rename("h1", "h2"), look("h1"), look("h2")) }},
		{"rename into a directory", func() string { return all(rename("f", "d/f"), data("d/f"), names("d"), look("d")) }},
		{"rename a file over a directory", func() string { return rename("f", "empty") }},
		{"rename a directory over a file", func() string { return rename("empty", "f") }},
		{"rename over a full directory", func() string { os.Mkdir("n", 0o755); return rename("n", "d") }},                           //nolint:errcheck // the answer below tells
		{"rename over an empty directory", func() string { os.Mkdir("n", 0o700); return all(rename("n", "empty"), look("empty")) }}, //nolint:errcheck // likewise
		{"rename below itself", func() string { return rename("d", "d/deep/d") }},
		{"rename a new directory", func() string {
			err := errors.Join(os.MkdirAll("n/m", 0o755), os.WriteFile("n/m/f", []byte("1"), 0o644))
			return all(answer(err), rename("n", "o"), data("o/m/f"), names("."))
		}},
		{"rename an old directory", func() string { return all(rename("d", "e"), names(".")) }},
		{"rename nothing", func() string { return rename("nothing", "n") }},
		{"rename through a file", func() string { return rename("f/x", "n") }},
		{"rename a link", func() string { return all(rename("l", "n"), data("n"), look("n")) }},
		{"rename dot", func() string { return rename(".", "n") }},
		{"rename without replacing", func() string {
			return all(rename2("f", "g", unix.RENAME_NOREPLACE), rename2("f", "n", unix.RENAME_NOREPLACE), data("n"))
		}},
		{"exchange", func() string { return all(rename2("f", "g", unix.RENAME_EXCHANGE), data("f"), data("g")) }},
		{"a file that is open is renamed", func() string {
			f, err := os.OpenFile("f", os.O_RDWR|os.O_APPEND, 0)
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			moved := rename("f", "n")
			_, err = f.WriteString("more\n")
			return all(moved, answer(err), data("n"))
		}},
	}
}

func links() []check {
	return []check{
		{"link a file", func() string { return all(answer(unix.Link("f", "n")), look("n"), look("f")) }},
		{"a link shows a change", func() string {
			return all(answer(unix.Link("f", "n")), answer(write("n", "changed", unix.O_TRUNC)), data("f"), look("f"))
		}},
		{"link over a file", func() string { return answer(unix.Link("f", "g")) }},
		{"link a directory", func() string { return answer(unix.Link("d", "n")) }},
		{"link nothing", func() string { return answer(unix.Link("nothing", "n")) }},
		{"links go one by one", func() string {
			err := errors.Join(unix.Link("f", "n"), unix.Link("n", "o"), unix.Unlink("f"))
			return all(answer(err), look("n"), answer(unix.Unlink("o")), look("n"))
		}},
		{"an old hard link", func() string { return all(look("h1"), data("h2")) }},
		{"symlink", func() string {
			target, err := os.Readlink("l")
			return all(answer(unix.Symlink("nowhere", "n")), data("n"), look("n"), answer(err, target), data("l"))
		}},
		{"symlink over a file", func() string { return answer(unix.Symlink("x", "f")) }},
		{"a loop of symlinks", func() string { return data("loop") }},
		{"a long target", func() string { return answer(unix.Symlink(strings.Repeat("x", 4096), "n")) }},
		{"owner of a link", func() string { return all(answer(unix.Lchown("l", 11, 12)), look("l"), look("f")) }},
		{"unlink a file", func() string { return all(answer(unix.Unlink("f")), look("f"), data("l"), look(".")) }},
		{"unlink a directory", func() string { return answer(unix.Unlink("d")) }},
		{"unlink nothing", func() string { return answer(unix.Unlink("nothing")) }},
		{"unlink through a file", func() string { return answer(unix.Unlink("f/x")) }},
		{"unlink and make again", func() string {
			err := errors.Join(unix.Unlink("f"), write("f", "again", unix.O_CREAT|unix.O_EXCL))
			return all(answer(err), data("f"), look("f"))
		}},
		{"a file that is open is unlinked", func() string {
			f, err := os.OpenFile("f", os.O_RDWR, 0)
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			gone := unix.Unlink("f")
			_, err = f.WriteAt([]byte("J"), 0)
			buf := make([]byte, 5)
			_, err2 := f.ReadAt(buf, 0)
			var st unix.Stat_t
			err3 := unix.Fstat(int(f.Fd()), &st)
			return all(answer(gone), answer(errors.Join(err, err2, err3), string(buf), st.Nlink), look("f"))
		}},
		{"a file without a name", func() string {
			fd, err := unix.Open(".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
			if err != nil {
				return answer(err)
			}
			defer unix.Close(fd)
			_, err = unix.Write(fd, []byte("tmp"))
			named := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, "n", unix.AT_SYMLINK_FOLLOW)
			return all(answer(err), answer(named), data("n"), look("n"))
		}},
	}
}

func files() []check { //nolint:funlen // a table
	return []check{
		{"create", func() string { return all(answer(write("n", "x", unix.O_CREAT|unix.O_EXCL)), look("n"), look(".")) }},
		{"create over a file", func() string { return answer(write("f", "x", unix.O_CREAT|unix.O_EXCL)) }},
		{"create over a link", func() string { return answer(write("l", "x", unix.O_CREAT|unix.O_EXCL)) }},
		{"create over a directory", func() string { return answer(write("d", "x", unix.O_CREAT)) }},
		{"create without a directory", func() string { return answer(write("no/n", "x", unix.O_CREAT)) }},
		{"a long name", func() string {
			return all(answer(write(strings.Repeat("n", 255), "x", unix.O_CREAT)), answer(write(strings.Repeat("n", 256), "x", unix.O_CREAT)))
		}},
		{"append", func() string { return all(answer(write("f", "more\n", unix.O_APPEND)), data("f"), look("f")) }},
		{"overwrite", func() string { return all(answer(write("f", "J", 0)), data("f"), look("f")) }},
		{"truncate", func() string {
			return all(answer(unix.Truncate("f", 2)), data("f"), answer(unix.Truncate("f", 5)), data("f"), look("f"))
		}},
		{"truncate what is open to read", func() string {
			fd, err := unix.Open("f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return answer(err)
			}
			defer unix.Close(fd)
			return answer(unix.Ftruncate(fd, 0))
		}},
		{"truncate a directory", func() string { return answer(unix.Truncate("d", 0)) }},
		{"truncate below zero", func() string { return answer(unix.Truncate("f", -1)) }},
		{"open for writing with truncation", func() string { return all(answer(write("big", "", unix.O_TRUNC)), look("big")) }},
		{"open a directory for writing", func() string { return answer(write("d", "", 0)) }},
		{"open a link without following", func() string { return answer(write("l", "", unix.O_NOFOLLOW)) }},
		{"write through a link", func() string { return all(answer(write("l", "through\n", unix.O_TRUNC)), data("f"), look("l")) }},
		{"a hole", func() string {
			f, err := os.OpenFile("n", os.O_RDWR|os.O_CREATE, 0o644)
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			_, err = f.WriteAt([]byte("end"), 1<<20)
			at, err2 := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
			return all(answer(errors.Join(err, err2), at), look("n"))
		}},
		{"punch a hole", func() string {
			f, err := os.OpenFile("big", os.O_RDWR, 0)
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 8192)
			return all(answer(err), data("big"), look("big"))
		}},
		{"map shared", func() string {
			f, err := os.OpenFile("big", os.O_RDWR, 0)
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return answer(err)
			}
			copy(m, "mapped")
			err = errors.Join(unix.Msync(m, unix.MS_SYNC), unix.Munmap(m))
			return all(answer(err), data("big"))
		}},
		{"a reader sees a writer", func() string {
			r, err := os.Open("f")
			if err != nil {
				return answer(err)
			}
			defer r.Close()
			err = write("f", "J", 0)
			buf := make([]byte, 5)
			_, err2 := r.ReadAt(buf, 0)
			return answer(errors.Join(err, err2), string(buf))
		}},
		{"locks of files", func() string {
			a, err := os.OpenFile("f", os.O_RDWR, 0)
			if err != nil {
				return answer(err)
			}
			defer a.Close()
			b, err := os.OpenFile("f", os.O_RDWR, 0)
			if err != nil {
				return answer(err)
			}
			defer b.Close()
			try := func(f *os.File) string { return answer(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)) }
			ofd := func(f *os.File) string {
				return answer(unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1}))
			}
			return all(try(a), try(b), ofd(a), ofd(b))
		}},
		{"identity of a file", func() string {
			var before, after unix.Stat_t
			err := errors.Join(unix.Stat("f", &before), write("f", "J", 0), unix.Stat("f", &after))
			return answer(err, before.Ino == after.Ino, before.Dev == after.Dev)
		}},
	}
}

func modes() []check {
	return []check{
		{"chmod a file", func() string { return all(answer(unix.Chmod("f", 0o751)), look("f")) }},
		{"chmod a directory", func() string { return all(answer(unix.Chmod("d", 0o1777)), look("d"), names("d")) }},
		{"chmod through a link", func() string { return all(answer(unix.Chmod("l", 0o600)), look("l"), look("f")) }},
		{"chmod nothing", func() string { return answer(unix.Chmod("nothing", 0o600)) }},
		{"set-id bits", func() string { return all(answer(unix.Chmod("f", 0o6755)), look("f")) }},
		{"set-id bits go with chown", func() string {
			return all(answer(errors.Join(unix.Chmod("f", 0o6755), unix.Chown("f", 5, 6))), look("f"))
		}},
		{"chown a directory", func() string { return all(answer(unix.Chown("d", 7, 8)), look("d")) }},
		{"chown to nobody in particular", func() string { return all(answer(unix.Chown("f", -1, -1)), look("f")) }},
		{"a directory gives its group", func() string {
			err := errors.Join(unix.Chown("empty", 7, 8), unix.Chmod("empty", 0o2755), write("empty/f", "", unix.O_CREAT), os.Mkdir("empty/d", 0o755))
			return all(answer(err), look("empty/f"), look("empty/d"))
		}},
		{"times", func() string {
			err := unix.UtimesNanoAt(unix.AT_FDCWD, "f", []unix.Timespec{{Sec: 5, Nsec: 6}, {Sec: 7, Nsec: 8}}, 0)
			var st unix.Stat_t
			err = errors.Join(err, unix.Stat("f", &st))
			return answer(err, st.Atim.Sec, st.Mtim.Sec, st.Mtim.Nsec)
		}},
		{"times of a link", func() string {
			err := unix.UtimesNanoAt(unix.AT_FDCWD, "l", []unix.Timespec{{Sec: 5}, {Sec: 7}}, unix.AT_SYMLINK_NOFOLLOW)
			var st unix.Stat_t
			err = errors.Join(err, unix.Lstat("l", &st))
			return all(answer(err, st.Mtim.Sec), look("f"))
		}},
		{"time now", func() string {
			err := unix.UtimesNanoAt(unix.AT_FDCWD, "f", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, 0)
			return all(answer(err), look("f"))
		}},
		{"times of nothing", func() string { return answer(unix.Utimes("nothing", make([]unix.Timeval, 2))) }},
		{"a read leaves the time of change", func() string { return all(data("f"), names("d"), look("f"), look("d")) }},
		{"attributes", func() string {
			err := unix.Setxattr("f", "user.a", []byte("value"), 0)
			buf := make([]byte, 64)
			n, err2 := unix.Getxattr("f", "user.a", buf)
			again := unix.Setxattr("f", "user.a", []byte("v"), unix.XATTR_CREATE)
			gone := errors.Join(unix.Removexattr("f", "user.a"))
			return all(answer(errors.Join(err, err2), string(buf[:max(n, 0)])), answer(again), answer(gone), answer(unix.Removexattr("f", "user.a")))
		}},
	}
}

func directories() []check {
	return []check{
		{"mkdir", func() string { return all(answer(unix.Mkdir("n", 0o777)), look("n"), names("n")) }},
		{"mkdir over a file", func() string { return answer(unix.Mkdir("f", 0o777)) }},
		{"mkdir over a directory", func() string { return answer(unix.Mkdir("d", 0o777)) }},
		{"mkdir over a link", func() string { return answer(unix.Mkdir("l", 0o777)) }},
		{"rmdir", func() string { return all(answer(unix.Rmdir("empty")), look("empty")) }},
		{"rmdir a full one", func() string { return answer(unix.Rmdir("d")) }},
		{"rmdir a file", func() string { return answer(unix.Rmdir("f")) }},
		{"rmdir dot", func() string { return answer(unix.Rmdir("empty/.")) }},
		{"rmdir after all went", func() string {
			err := errors.Join(unix.Unlink("d/x"), unix.Unlink("d/deep/y"), unix.Rmdir("d/deep"))
			return all(answer(err), names("d"), answer(unix.Rmdir("d")), look("d"))
		}},
		{"a directory comes back empty", func() string {
			return all(answer(errors.Join(os.RemoveAll("d"), os.Mkdir("d", 0o700))), names("d"), look("d"), look("d/x"))
		}},
		{"a directory comes in the place of a file", func() string {
			return all(answer(errors.Join(unix.Unlink("f"), os.Mkdir("f", 0o755), write("f/in", "1", unix.O_CREAT))), names("f"), data("f/in"))
		}},
		{"a file comes in the place of a directory", func() string {
			return all(answer(errors.Join(os.RemoveAll("d"), write("d", "1", unix.O_CREAT))), data("d"), look("d"))
		}},
		{"work in a directory that is gone", func() string {
			if err := errors.Join(os.Chdir("empty"), unix.Rmdir("../empty")); err != nil {
				return answer(err)
			}
			return all(answer(write("n", "", unix.O_CREAT)), names("."))
		}},
		{"a list while files come and go", func() string {
			for i := range 500 {
				if err := write(fmt.Sprintf("d/n%03d", i), "", unix.O_CREAT); err != nil {
					return answer(err)
				}
			}
			f, err := os.Open("d")
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			seen := map[string]int{}
			for {
				list, err := f.Readdirnames(50)
				if len(list) == 0 {
					break
				}
				if err != nil {
					return answer(err)
				}
				for _, n := range list {
					seen[n]++
					if strings.HasPrefix(n, "n") {
						os.Remove(filepath.Join("d", n))
					}
				}
			}
			twice := 0
			for _, n := range seen {
				if n > 1 {
					twice++
				}
			}
			return all(fmt.Sprint(len(seen), " names, ", twice, " twice"), names("d"))
		}},
	}
}

func special() []check {
	return []check{
		{"mkfifo", func() string { return all(answer(unix.Mkfifo("n", 0o600)), look("n"), answer(unix.Mkfifo("f", 0o600))) }},
		{"a FIFO works", func() string {
			r, err := unix.Open("p", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return answer(err)
			}
			defer unix.Close(r)
			err = write("p", "through", unix.O_NONBLOCK)
			buf := make([]byte, 16)
			n, err2 := unix.Read(r, buf)
			return answer(errors.Join(err, err2), string(buf[:max(n, 0)]))
		}},
		{"a FIFO without a reader", func() string { return answer(write("p", "", unix.O_NONBLOCK)) }},
		{"a socket", func() string {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return answer(err)
			}
			defer unix.Close(fd)
			err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "s"}), unix.Listen(fd, 1))
			c, err2 := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err2 != nil {
				return answer(err2)
			}
			defer unix.Close(c)
			return all(answer(err), answer(unix.Connect(c, &unix.SockaddrUnix{Name: "s"})), answer(write("s", "", 0)))
		}},
		{"a device", func() string {
			return all(answer(unix.Mknod("n", unix.S_IFCHR|0o600, int(unix.Mkdev(0, 0)))), names("."))
		}},
		{"sync", func() string {
			f, err := os.OpenFile("f", os.O_RDWR, 0)
			if err != nil {
				return answer(err)
			}
			defer f.Close()
			return answer(errors.Join(unix.Fsync(int(f.Fd())), unix.Fdatasync(int(f.Fd()))))
		}},
		{"names are bytes", func() string {
			odd := "\xff\n\x1b[31m"
			return all(answer(write(odd, "1", unix.O_CREAT)), data(odd), answer(write("F", "upper", unix.O_CREAT)), data("f"))
		}},
	}
}
