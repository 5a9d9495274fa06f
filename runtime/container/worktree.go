package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/profiles"
)

// A container can be given a git worktree of a repository in the place of the repository itself: a folder beside it, in
// which a branch is checked out, and the repository's own directory, both overlaid. The runtime never runs git: a
// repository's configuration names programs (filters, hooks, fsmonitor), so whoever reads it as root is its owner's. What
// has to be checked out is checked out by agentsafectl, in a container that can only read the repository
// (WorktreeCommand); what git has to know of the worktree are five small files (gitrepository-layout(5), "worktrees"),
// which are written here, through the overlay, so that nothing but the folder is made on the host.

// WorktreeCommand is the command of agentsafectl that makes a worktree: it reads a WorktreeRequest from its standard
// input and writes a Worktree to its standard output.
const WorktreeCommand = "worktree-make"

const worktreeKey = "worktree"

// WorktreeAuto asks for a new branch that is called after the container.
const WorktreeAuto = "auto"

// WorktreeRequest says which worktree a container is to have.
type WorktreeRequest struct {
	Repository string `json:"repository"` // path of the folder that holds .git
	Name       string `json:"name"`       // of the worktree, as git lists it
	Branch     string `json:"branch"`
}

// Worktree is a worktree that has been checked out and that git knows nothing of.
type Worktree struct {
	Name   string `json:"name"`
	Branch string `json:"branch"`
	// Common is the repository's own directory. Dir holds the folder, which is Tree, and git's index of it.
	Common string `json:"common"`
	Dir    string `json:"dir"`
	// TreeDev and TreeIno identify the folder.
	TreeDev uint64 `json:"treeDev"`
	TreeIno uint64 `json:"treeIno"`
	// Start is the commit that was checked out. NewBranch says that there is no such branch yet.
	Start     string `json:"start"`
	NewBranch bool   `json:"newBranch"`
	// Keep leaves the folder when the layers go.
	Keep bool `json:"keep,omitempty"`
}

// Tree is the folder that is worked in, below Dir.
func (w *Worktree) Tree() string { return filepath.Join(w.Dir, "tree") }

// Index is git's index of the folder as it was checked out, below Dir.
func (w *Worktree) Index() string { return filepath.Join(w.Dir, "index") }

// maxIndex bounds what is read of an index: some hundred bytes for each file.
const maxIndex = 1 << 30

// CheckBranch refuses what is not the name of a branch, or not of one that git makes without being forced to. Source:
// git-check-ref-format(1).
func CheckBranch(name string) error {
	bad := name == "" || len(name) > 255 || name[0] == '-' || name == "@" || strings.Contains(name, "..") || strings.Contains(name, "@{") ||
		strings.HasSuffix(name, ".") || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`~^:?*[\`, r) })
	for part := range strings.SplitSeq(name, "/") {
		bad = bad || part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock")
	}
	if bad {
		return fmt.Errorf("%q is not the name of a branch", name)
	}
	return nil
}

// askedWorktree returns the branch that a spec wants a worktree on, and who says so; "" for none.
func askedWorktree(s *specs.Spec) (branch, source string) {
	const annotation, variable = profiles.AnnotationPrefix + worktreeKey, "AGENTSAFE_WORKTREE="
	if v, ok := s.Annotations[annotation]; ok {
		return v, fromAnnotation + annotation
	}
	if s.Process != nil {
		for _, e := range s.Process.Env {
			if v, ok := strings.CutPrefix(e, variable); ok {
				return v, fromVariable + strings.TrimSuffix(variable, "=")
			}
		}
	}
	return "", ""
}

// takeWorktree puts a worktree in the place of the repository that the spec binds, if the spec asks for one.
func (cr *creation) takeWorktree(ctx context.Context) error {
	cr.worktree = cr.o.Worktree
	branch, source := askedWorktree(cr.spec)
	if source == "" || cr.worktree != nil {
		return nil
	}
	// Before anything is made on the host: the profile has to have an overlay for it.
	chosen, err := cr.rt.choose(cr.spec)
	if err != nil {
		return err
	}
	if strings.HasPrefix(source, fromVariable) && !chosen.config.WorktreeVariable {
		// A folder on the host is something granted, and images grant nothing.
		cr.rt.opts.Warn(fmt.Sprintf("%s is not heeded, since an image can set it: `worktreeVariable = true` in %s lets it count, the annotation %s counts always",
			source, filepath.Join(cr.rt.opts.ConfigDir, ConfigSource), profiles.AnnotationPrefix+worktreeKey))
		return nil
	}
	if w := &chosen.profile.Filesystem.Workspace; chosen.warn || chosen.profile.Unrestricted || w.Mode != profiles.WorkspaceOverlay {
		return &profiles.RefusedError{
			What: source + "=" + branch, Rule: fmt.Sprintf("the profile %q has no overlay for it (filesystem.workspace.mode)", chosen.profile.Name),
			Allow: "a profile with the workspace mode overlay or direct",
		}
	}
	i, err := repositoryMount(cr.spec)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	if cr.worktree, err = cr.makeWorktree(ctx, cr.spec.Mounts[i].Source, branch); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	folder, err := layer.OpenFolder(cr.worktree.Dir)
	if err != nil {
		return err
	}
	cr.undo.push(func() { folder.Remove() }) //nolint:errcheck // the first error is the one to report
	mount := cr.spec.Mounts[i]
	mount.Source = cr.worktree.Tree()
	common := mount
	common.Source, common.Destination = cr.worktree.Common, cr.worktree.Common
	cr.spec.Mounts = append(slices.Clone(cr.spec.Mounts), common)
	cr.spec.Mounts[i] = mount
	return nil
}

// repositoryMount finds the mount that a worktree takes the place of: the one that the task starts in if that is a
// repository, else the only one.
func repositoryMount(s *specs.Spec) (int, error) {
	var found []int
	for i := range s.Mounts {
		m := &s.Mounts[i]
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		var st unix.Stat_t
		if !bind || !filepath.IsAbs(m.Source) || slices.Contains(m.Options, "ro") ||
			unix.Lstat(filepath.Join(m.Source, ".git"), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if d := path.Clean(m.Destination); s.Process != nil && (s.Process.Cwd == d || strings.HasPrefix(s.Process.Cwd, d+"/")) {
			return i, nil
		}
		found = append(found, i)
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d writable bind mounts are repositories (folders with a directory .git), and the working directory is in none: which is meant?", len(found))
	}
	return found[0], nil
}

// makeWorktree has agentsafectl make a worktree.
func (cr *creation) makeWorktree(ctx context.Context, repository, branch string) (*Worktree, error) {
	// Docker's ids are hashes, which it shortens in the same way.
	const long, short = 64, 12
	name := cr.o.ID
	if len(name) == long && strings.Trim(name, "0123456789abcdef") == "" {
		name = name[:short]
	}
	if branch == WorktreeAuto {
		branch = "agentsafe/" + name
	}
	request, err := json.Marshal(&WorktreeRequest{Repository: repository, Name: name, Branch: branch})
	if err != nil {
		return nil, err
	}
	// A checkout takes as long as its bytes; one that a filter holds up is ended.
	const most = 10 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, most, errors.New("the checkout does not end"))
	defer cancel()
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, cr.rt.recorderPath(), WorktreeCommand)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env, cmd.Dir = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, &complaint
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(complaint.String()); text != "" {
			const tail = 1000 // of git, at worst
			return nil, fmt.Errorf("make worktree: %s", text[max(len(text)-tail, 0):])
		}
		return nil, fmt.Errorf("make worktree: %w", errors.Join(err, context.Cause(ctx)))
	}
	w := &Worktree{}
	if err := json.Unmarshal(out.Bytes(), w); err != nil {
		return nil, fmt.Errorf("make worktree: %s answers %q: %w", WorktreeCommand, out.String(), err)
	}
	return w, nil
}

// overlaidWorktree makes sure that both folders of a worktree are under overlays, and that the one that was checked out is
// the one that was opened. It returns the mount of the repository's own directory.
func (cr *creation) overlaidWorktree() (common int, err error) {
	common = -1
	treeFound := false
	for _, i := range cr.workspaceMounts {
		switch s := cr.src[i]; {
		case s.Dev == cr.worktree.TreeDev && s.Ino == cr.worktree.TreeIno:
			treeFound = true
		case s.Path == cr.worktree.Common:
			common = i
		}
	}
	if cr.workspace.Mode != profiles.WorkspaceOverlay || !treeFound || common < 0 {
		return 0, &profiles.RefusedError{
			What: "a worktree of " + filepath.Dir(cr.worktree.Common), Allow: "filesystem.workspace.mode overlay, and filesystem.workspace.paths without a list",
			Rule: "the worktree and the repository's own directory must both be overlaid, so that the host's repository does not change",
		}
	}
	return common, nil
}

// register tells git of a worktree, as gitrepository-layout(5) says, in the view of the repository's own directory.
func (w *Worktree) register(view *os.File) error {
	index, err := readRegular(w.Index(), maxIndex)
	if err != nil {
		return fmt.Errorf("read index of worktree: %w", err)
	}
	root := tree.NewRoot(view)
	_, owner, err := root.KindAt("")
	if err != nil {
		return fmt.Errorf("open %s: %w", w.Common, err)
	}
	dir := "worktrees/" + w.Name
	if _, _, err := root.KindAt(dir); !tree.Missing(err) {
		return fmt.Errorf("git knows a worktree %q already: %w", w.Name, errors.Join(err, unix.EEXIST))
	}
	files := [][2]string{
		{dir + "/gitdir", w.Tree() + "/.git\n"},
		{dir + "/commondir", "../..\n"},
		{dir + "/HEAD", "ref: refs/heads/" + w.Branch + "\n"},
		{dir + "/index", string(index)},
	}
	if w.NewBranch {
		files = append(files, [2]string{"refs/heads/" + w.Branch, w.Start + "\n"})
	}
	const dirMode, fileMode = 0o755, 0o644
	owner.Mode = dirMode
	var writer tree.Writer
	for _, f := range files {
		for i := range len(f[0]) {
			if f[0][i] == '/' && !root.IsDir(f[0][:i]) {
				if err := writer.MakeDir(root, f[0][:i], &owner); err != nil {
					return fmt.Errorf("tell git of the worktree: %w", err)
				}
			}
		}
		err := writer.MakeFile(root, f[0], &owner)
		if err == nil {
			err = writer.Overwrite(root, f[0], f[1], fileMode)
		}
		if err != nil {
			return fmt.Errorf("tell git of the worktree: %w", err)
		}
	}
	return nil
}

// readRegular reads a file that somebody else has made.
func readRegular(name string, most int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s, %d bytes: want a regular file of at most %d: %w", info.Mode(), info.Size(), most, unix.EINVAL)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
