package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// A worktree is a folder beside the repository in which a branch is checked out before the task starts, overlaid for it,
// with the repository's own directory overlaid as well. On the host nothing but the folder is made: what git has to know is
// written by the runtime, into the layer (container.Worktree). `run --worktree` makes one for itself, and the runtime has
// one made, by worktree-make, for a container of an engine that asks for it.

// runWorktree makes a worktree and runs the command in it.
func (f *runFlags) runWorktree(ctx context.Context, command []string) error {
	if f.rootfs != "" || f.image != "" {
		return errors.New("--worktree works on the host's programs, among which git is")
	}
	if f.id == "" {
		f.id = newID()
	}
	repository := f.workspace
	if repository == "" {
		repository = "."
	}
	branch := f.worktree
	if branch == container.WorktreeAuto {
		branch = "agentsafe/" + f.id
	}
	w, err := f.makeWorktree(ctx, &container.WorktreeRequest{Repository: repository, Name: f.id, Branch: branch})
	if err != nil {
		return fmt.Errorf("--worktree: %w", err)
	}
	run := *f
	run.worktree, run.workspace, run.common, run.overlay, run.tree = "", w.Tree(), w.Common, true, w
	w.Keep = f.keepTree
	err = run.open(ctx, command, func(ctx context.Context, o *operation) error { return o.run(ctx) })
	return errors.Join(err, f.unlessLayers(w))
}

// newWorktreeCommand is what the runtime runs for a container whose spec asks for a worktree.
func newWorktreeCommand(p *paths) *cobra.Command {
	return &cobra.Command{
		Use: container.WorktreeCommand, Hidden: true, Args: cobra.NoArgs, Short: "Make a git worktree for a container (for the runtime)",
		RunE: func(c *cobra.Command, _ []string) error {
			request := &container.WorktreeRequest{}
			if err := json.NewDecoder(c.InOrStdin()).Decode(request); err != nil {
				return fmt.Errorf("read request: %w", err)
			}
			f := &runFlags{paths: p, pids: defaultPIDs}
			w, err := f.makeWorktree(c.Context(), request)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(w)
		},
	}
}

// makeWorktree makes the folder and checks the branch out in it. If it fails nothing is left.
func (f *runFlags) makeWorktree(ctx context.Context, r *container.WorktreeRequest) (*container.Worktree, error) {
	w, err := makeFolder(r)
	if err != nil {
		return nil, err
	}
	if err := f.checkOut(ctx, w); err != nil {
		return nil, errors.Join(err, removeWorktree(w.Dir))
	}
	return w, nil
}

// checkOutScript fills the folder from the repository, which it can't write to. What git would refuse to do unless forced
// is refused: a branch that is checked out elsewhere, and one whose name is a folder of others.
const checkOutScript = `exec >&2
common=$1 branch=$2 dir=$3 name=$4
git check-ref-format --branch "$branch" >/dev/null
export GIT_DIR="$common"
format=$(git config --file "$common/config" --get extensions.refstorage || echo files)
[ "$format" = files ] || { echo "the repository keeps its branches as $format, not as files"; exit 1; }
if git worktree list --porcelain | grep -qxF "branch refs/heads/$branch"; then echo "the branch $branch is checked out in another worktree"; exit 1; fi
new=
if ! start=$(git rev-parse --verify --quiet --end-of-options "refs/heads/$branch^{commit}"); then
  new=new
  start=$(git rev-parse --verify --end-of-options 'HEAD^{commit}')
  p=$branch
  while [ "$p" != "${p%/*}" ]; do p=${p%/*}; if git show-ref --verify --quiet "refs/heads/$p"; then echo "there is a branch $p, so there can be no branch $branch"; exit 1; fi; done
  [ -z "$(git for-each-ref "refs/heads/$branch/")" ] || { echo "there are branches below $branch/, so there can be none of that name"; exit 1; }
fi
export GIT_WORK_TREE="$dir/tree" GIT_INDEX_FILE="$dir/index" GIT_OPTIONAL_LOCKS=0
mkdir "$dir/tree"; cd "$dir/tree"
git read-tree "$start"; git checkout-index --all --quiet --index
printf 'gitdir: %s\n' "$common/worktrees/$name" >.git
printf '%s %s' "$start" "$new" >"$dir/start"`

// makeFolder makes the directory of a worktree beside the repository, as its owner's.
func makeFolder(r *container.WorktreeRequest) (*container.Worktree, error) {
	if err := errors.Join(container.CheckBranch(r.Branch), container.ValidateID(r.Name)); err != nil {
		return nil, err
	}
	repository, path, err := task.OpenWorkspace(r.Repository)
	if err != nil {
		return nil, err
	}
	defer repository.Close()
	w := &container.Worktree{Name: r.Name, Branch: r.Branch, Common: filepath.Join(path, ".git"), Dir: filepath.Join(path+"-worktrees", r.Name)}
	var st unix.Stat_t
	if err := unix.Fstatat(int(repository.Fd()), ".git", &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("%q holds no repository of its own: there is no directory .git in it (in a linked worktree: name the main one)", path)
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
	own, err := ownedDir(all, r.Name, &st, false)
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
func (f *runFlags) checkOut(ctx context.Context, w *container.Worktree) error {
	prepare := *f
	prepare.id, prepare.worktree, prepare.workspace = w.Name+"-checkout", "", w.Dir
	prepare.common, prepare.commonReadOnly = w.Common, true
	prepare.profile, prepare.network, prepare.json, prepare.quiet, prepare.detachedIO = profiles.NameAgent, task.NetworkNone, false, true, true
	err := prepare.open(ctx, []string{"/bin/sh", "-ec", checkOutScript, "sh", w.Common, w.Branch, w.Dir, w.Name},
		func(ctx context.Context, o *operation) error { return o.run(ctx) })
	if err != nil {
		return fmt.Errorf("check out %s: %w", w.Branch, err)
	}
	file, err := os.OpenFile(filepath.Join(w.Dir, "start"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("check out %s: %w", w.Branch, err)
	}
	defer file.Close()
	const sha1, sha256, word = 40, 64, " new"
	data, err := io.ReadAll(io.LimitReader(file, sha256+int64(len(word))+1))
	var kind string
	w.Start, kind, _ = strings.Cut(string(data), " ")
	if w.NewBranch = kind != ""; err != nil || len(w.Start) != sha1 && len(w.Start) != sha256 || strings.Trim(w.Start, "0123456789abcdef") != "" {
		return errors.Join(err, fmt.Errorf("check out %s: git names no commit", w.Branch))
	}
	folder, err := layer.OpenFolder(w.Tree())
	if err != nil {
		return fmt.Errorf("check out %s: %w", w.Branch, err)
	}
	w.TreeDev, w.TreeIno = folder.Dev, folder.Ino
	return nil
}

// unlessLayers removes the folder of a container that never started, and so has no layers with which it goes.
func (f *runFlags) unlessLayers(w *container.Worktree) error {
	l, err := layer.Open(filepath.Join(f.paths.data, layersName), f.id)
	if errors.Is(err, layer.ErrNotExist) {
		return removeWorktree(w.Dir)
	}
	if err != nil {
		return err
	}
	l.Close()
	return nil
}

func removeWorktree(dir string) error {
	f, err := layer.OpenFolder(dir)
	if err != nil {
		return err
	}
	return f.Remove()
}
