package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/fs/layer"
)

// worktree is a git worktree for one task: a folder beside the repository that is checked out before the task starts and
// overlaid for it, with the repository's own directory overlaid as well. On the host nothing but the folder is made: the
// branch and git's notes on the worktree are the first things that the task's layer holds.
type worktree struct {
	name   string // of the worktree, as git lists it: the run's id
	branch string
	common string // the repository's .git
	dir    string // DIR-worktrees/NAME, which holds the folder
	start  string // the commit that was checked out
}

// treeName is the folder below a worktree's directory.
const treeName = "tree"

func (w *worktree) tree() string { return filepath.Join(w.dir, treeName) }

// autoBranch is the value of --worktree without a branch.
const autoBranch = "auto"

// runWorktree makes a worktree and runs the command in it.
func (f *runFlags) runWorktree(ctx context.Context, command []string) error {
	if f.rootfs != "" || f.image != "" {
		return errors.New("--worktree works on the host's programs, among which git is")
	}
	if f.id == "" {
		f.id = newID()
	}
	w, err := f.makeWorktree()
	if err != nil {
		return fmt.Errorf("--worktree: %w", err)
	}
	if err := f.checkOut(ctx, w); err != nil {
		return errors.Join(fmt.Errorf("--worktree: %w", err), removeWorktree(w.dir))
	}
	run := *f
	run.worktree, run.workspace, run.common, run.overlay = "", w.tree(), w.common, true
	err = run.open(ctx, append([]string{
		"/bin/sh", "-ec", worktreeScript, "sh", w.common, w.name, w.branch, w.start, w.tree(),
	}, command...), func(ctx context.Context, o *operation) error { return o.run(ctx) })
	return errors.Join(err, f.keepWorktree(w))
}

// worktreeScript tells git of the worktree, in the task's layer, as gitrepository-layout(5) says, and becomes the task.
const worktreeScript = `common=$1 name=$2 branch=$3 start=$4 tree=$5; shift 5
d=$common/worktrees/$name; mkdir -p "$d"
printf '%s\n' "$tree/.git" >"$d/gitdir"; printf '../..\n' >"$d/commondir"; printf 'ref: refs/heads/%s\n' "$branch" >"$d/HEAD"
git -C "$tree" show-ref --verify --quiet "refs/heads/$branch" || git -C "$tree" update-ref "refs/heads/$branch" "$start"
git -C "$tree" read-tree HEAD; git -C "$tree" update-index -q --refresh || :
exec "$@"`

// checkOutScript fills the folder from the repository, which it can't write to.
const checkOutScript = `common=$1 name=$2 branch=$3 dir=$4
git check-ref-format --branch "$branch" >/dev/null
export GIT_DIR="$common" GIT_WORK_TREE="$dir/tree" GIT_INDEX_FILE="$dir/index" GIT_OPTIONAL_LOCKS=0
start=$(git rev-parse --verify --quiet --end-of-options "refs/heads/$branch^{commit}" || git rev-parse --verify --end-of-options 'HEAD^{commit}')
mkdir "$dir/tree"; cd "$dir/tree"
git read-tree "$start"; git checkout-index --all --quiet
printf 'gitdir: %s\n' "$common/worktrees/$name" >.git
printf '%s' "$start" >"$dir/start"; rm -f "$dir/index"`

// makeWorktree makes the directory of a worktree beside the repository, as its owner's.
func (f *runFlags) makeWorktree() (*worktree, error) {
	dir := f.workspace
	if dir == "" {
		dir = "."
	}
	repository, path, err := task.OpenWorkspace(dir)
	if err != nil {
		return nil, err
	}
	defer repository.Close()
	w := &worktree{name: f.id, branch: f.worktree, common: filepath.Join(path, ".git"), dir: filepath.Join(path+"-worktrees", f.id)}
	if w.branch == autoBranch {
		w.branch = "agentsafe/" + f.id
	}
	if strings.HasPrefix(w.branch, "-") || strings.ContainsFunc(w.branch, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return nil, fmt.Errorf("%q is not the name of a branch", w.branch)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(repository.Fd()), ".git", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("%q holds no repository of its own: there is no directory .git in it (in a linked worktree: name the main one with --workspace)", path)
	}
	if err := unix.Fstatat(int(repository.Fd()), "", &st, unix.AT_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("stat repository: %w", err)
	}
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	all, err := ownedDir(parent, filepath.Base(path)+"-worktrees", &st, true)
	if err != nil {
		return nil, err
	}
	defer all.Close()
	own, err := ownedDir(all, f.id, &st, false)
	if err != nil {
		return nil, err
	}
	return w, own.Close()
}

// ownedDir makes a directory and gives it to an owner, by handle: the parent may be writable by others.
func ownedDir(parent *os.File, name string, owner *unix.Stat_t, mayExist bool) (*os.File, error) {
	const mode = 0o755
	err := unix.Mkdirat(int(parent.Fd()), name, mode)
	made := err == nil
	if err != nil && (!mayExist || !errors.Is(err, unix.EEXIST)) {
		return nil, fmt.Errorf("make directory %s: %w", name, err)
	}
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", name, err)
	}
	d := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && made && st.Uid == uint32(os.Geteuid()) { //nolint:gosec // ids are 32 bits
		err = unix.Fchown(fd, int(owner.Uid), int(owner.Gid))
	} else if err == nil && st.Uid != owner.Uid {
		err = fmt.Errorf("it belongs to uid %d and the repository to %d: %w", st.Uid, owner.Uid, unix.EPERM)
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("directory %s: %w", name, err)
	}
	return d, nil
}

// checkOut fills the worktree in a container of its own, in which the repository can only be read: checking out runs
// filters that the repository's configuration names.
func (f *runFlags) checkOut(ctx context.Context, w *worktree) error {
	prepare := *f
	prepare.id, prepare.worktree, prepare.workspace = f.id+"-checkout", "", w.dir
	prepare.common, prepare.commonReadOnly = w.common, true
	prepare.profile, prepare.network, prepare.json, prepare.quiet, prepare.detachedIO = "agent", task.NetworkNone, false, true, true
	err := prepare.open(ctx, []string{"/bin/sh", "-ec", checkOutScript, "sh", w.common, w.name, w.branch, w.dir},
		func(ctx context.Context, o *operation) error { return o.run(ctx) })
	if err != nil {
		return fmt.Errorf("check out %s: %w", w.branch, err)
	}
	file, err := os.OpenFile(filepath.Join(w.dir, "start"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("check out %s: %w", w.branch, err)
	}
	defer file.Close()
	const most = 64 // a sha256
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	w.start = string(data)
	if err != nil || len(data) > most || len(data) < most/2 || strings.Trim(w.start, "0123456789abcdef") != "" {
		return errors.Join(err, fmt.Errorf("check out %s: git names no commit", w.branch))
	}
	return nil
}

// keepWorktree lets the folder go with the layer; without one (the container never started) it goes now.
func (f *runFlags) keepWorktree(w *worktree) error {
	l, err := layer.Open(filepath.Join(f.paths.data, layersName), f.id)
	if errors.Is(err, layer.ErrNotExist) {
		return removeWorktree(w.dir)
	}
	if err != nil {
		return err
	}
	defer l.Close()
	if f.keepTree {
		return nil
	}
	return l.SetFolder(w.dir)
}

func removeWorktree(dir string) error {
	f, err := layer.OpenFolder(dir)
	if err != nil {
		return err
	}
	return f.Remove()
}
