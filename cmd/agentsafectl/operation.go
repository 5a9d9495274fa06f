package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unicode/utf8"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/task"
	"github.com/agentsafe/agentsafe/fs/image"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// Names below a run directory and below the data directory.
const (
	rootName   = "rootfs" // skeleton, or where the overlay is mounted
	filesName  = "files"  // hosts, hostname, resolv.conf of an image
	uppersName = "runs"   // below the data directory: writable layers of runs
	imagesName = "images" // below the data directory: unpacked layers
	filterName = "cache"  // below the data directory: compiled filters
	layersName = "layers" // below the data directory: layers of workspaces
)

// operation is one run in progress.
type operation struct {
	flags   *runFlags
	request *task.Request
	runtime *container.Runtime
	started time.Time
	dir     *runDir // bundle: on a file system that dies with the host
	upper   *runDir // writable layer; nil on the host's programs

	rootless bool          // for an ordinary user, as root of that user's namespace
	ids      container.IDs // of that namespace
	// created is called when the container waits to be started; nil for nothing to do.
	created func(c *container.Container) error
	// record has the run recorded; nil for not.
	record *container.Recording
	// denials is what --json adds at the end; nil for nothing.
	denials func() []denials.Denial

	workspace *os.File // nil for none
	user      task.User
	plan      *task.Plan
	notes     []string
	expired   chan error // how the removal of old layers ended, beside the run
}

// sweep removes what runs left that were killed: first the container, then what
// its mounts stand on.
func (o *operation) sweep(ctx context.Context) error {
	err := sweep(ctx, o.flags.paths.runs, o.deleteOwned)
	if err != nil {
		return err
	}
	o.expired = make(chan error, 1)
	go func() { // it may take minutes, and what it does not come to is left to the next run
		_, err := layer.Expire(filepath.Join(o.flags.paths.data, layersName), layer.DefaultExpiry, nil)
		o.expired <- err
	}()
	return sweep(ctx, filepath.Join(o.flags.paths.data, uppersName), func(context.Context, string, string) error { return nil })
}

// deleteOwned deletes the container of a run directory, unless a container of
// that name belongs to somebody else.
func (o *operation) deleteOwned(ctx context.Context, id, path string) error {
	c, err := o.runtime.Load(id)
	if errors.Is(err, container.ErrNotExist) || errors.Is(err, container.ErrInvalidID) {
		return nil
	}
	if err != nil {
		return err
	}
	owned := c.State().Bundle == path
	c.Close()
	if !owned {
		return nil
	}
	return o.runtime.Delete(ctx, id, true)
}

// claim takes the id and makes what the container stands on; release removes it.
func (o *operation) claim(ctx context.Context) (release func() error, err error) {
	if err := container.ValidateID(o.request.ID); err != nil {
		return nil, err
	}
	if o.dir, err = claimRunDir(o.flags.paths.runs, o.request.ID); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("--id %s: a run of this name is going on", o.request.ID)
		}
		return nil, err
	}
	if err := o.prepare(ctx); err != nil {
		return nil, errors.Join(err, o.dir.remove())
	}
	return func() error {
		var err error
		if o.upper != nil {
			err = o.removeUpper()
		}
		return errors.Join(err, o.dir.remove())
	}, nil
}

// run makes the container, runs it to its end and removes everything.
func (o *operation) run(ctx context.Context) (err error) {
	release, err := o.claim(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	var captured *[2]capture
	if o.flags.json {
		captured = new([2]capture)
	}
	outcome, err := o.execute(ctx, captured)
	if err != nil {
		return err
	}
	select {
	case err := <-o.expired:
		if err != nil {
			o.note(fmt.Sprintf("layers of containers that are gone: %v", err))
		}
	default:
	}
	if o.flags.json {
		if err := o.report(outcome, captured); err != nil {
			return err
		}
	}
	if outcome.end != nil && outcome.end.Reason == "" && outcome.end.Message != "" && !o.flags.json {
		o.note("the task " + outcome.end.Message)
	}
	switch {
	case outcome.timedOut:
		message := fmt.Errorf("the task %s and was ended with all its processes", outcome.end.Message)
		if o.flags.json {
			message = nil
		}
		return &exitError{code: exitTimeout, err: message}
	case outcome.end != nil && outcome.end.Reason == container.EndOOM && outcome.status != 0 && !o.flags.json:
		return &exitError{code: outcome.status, err: fmt.Errorf("the task %s", outcome.end.Message)}
	case outcome.status != 0:
		return &exitError{code: outcome.status}
	}
	return nil
}

// prepare plans the container and makes what its root stands on.
func (o *operation) prepare(ctx context.Context) error {
	if o.flags.image != "" || o.flags.rootfs != "" {
		return o.prepareRoot(ctx)
	}
	host, err := task.ReadHost(os.Getenv("HOME"))
	if err != nil {
		return err
	}
	if o.user, err = o.taskUser(host.Passwd); err != nil {
		return err
	}
	rootDir := filepath.Join(o.dir.path, rootName)
	if o.plan, err = task.PlanHost(o.request, o.user, host, rootDir); err != nil {
		return err
	}
	if o.rootless {
		o.plan.MapOwn(o.user)
	}
	return o.writeSkeleton(rootName)
}

// taskUser decides who the task runs as on this host's programs.
func (o *operation) taskUser(passwd []byte) (u task.User, err error) {
	switch {
	case o.rootless:
		return o.hostUser(passwd)
	case o.flags.user != "":
		if u, err = task.UserByID(o.flags.user, passwd); err != nil {
			return u, fmt.Errorf("--user: %w", err)
		}
		return u, nil
	}
	return task.WorkspaceOwner(o.workspace, passwd)
}

// writeSkeleton makes the plan's nodes in a new directory of the run.
func (o *operation) writeSkeleton(name string) error {
	if err := o.dir.root.Mkdir(name, 0o755); err != nil {
		return fmt.Errorf("write skeleton: %w", err)
	}
	// The umask may have taken bits away, and the task is somebody else.
	if err := o.dir.root.Chmod(name, 0o755); err != nil {
		return fmt.Errorf("write skeleton: %w", err)
	}
	dir, err := o.dir.root.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("write skeleton: %w", err)
	}
	defer dir.Close()
	return task.WriteSkeleton(dir, o.plan.Skeleton)
}

// prepareRoot mounts an image or a directory, below a layer that is thrown away.
func (o *operation) prepareRoot(ctx context.Context) (err error) {
	lower, config, err := o.lowerLayers(ctx)
	if err != nil {
		return err
	}
	if o.upper, err = claimRunDir(filepath.Join(o.flags.paths.data, uppersName), o.request.ID); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.removeUpper())
		}
	}()
	rootDir := filepath.Join(o.dir.path, rootName)
	if err := o.mountRoot(rootDir, lower); err != nil {
		return err
	}
	if err := o.lookupUser(rootDir, config.User); err != nil {
		return err
	}
	homes, err := task.Homes(os.Getenv("HOME"))
	if err != nil {
		return err
	}
	o.request.Command = config.Args(o.request.Command)
	o.plan, err = task.PlanRoot(o.request, o.user, task.Root{
		Dir: rootDir, Env: config.Env, WorkingDir: config.WorkingDir, FilesDir: filepath.Join(o.dir.path, filesName),
	}, homes)
	if err != nil {
		return err
	}
	if o.rootless {
		o.plan.MapAll(o.ids.UID, o.ids.GID)
	}
	return o.writeSkeleton(filesName)
}

func (o *operation) mountRoot(rootDir string, lower []string) error {
	for _, d := range []struct {
		dir  *os.Root
		name string
	}{{o.upper.root, "upper"}, {o.upper.root, "work"}, {o.dir.root, rootName}} {
		if err := d.dir.Mkdir(d.name, 0o755); err != nil {
			return fmt.Errorf("make writable layer: %w", err)
		}
		if err := d.dir.Chmod(d.name, 0o755); err != nil { // becomes "/"
			return fmt.Errorf("make writable layer: %w", err)
		}
	}
	options, err := image.OverlayOptions(lower, filepath.Join(o.upper.path, "upper"), filepath.Join(o.upper.path, "work"))
	if err != nil {
		return err
	}
	return mountOverlay(rootDir, joinOptions(options))
}

func (o *operation) removeUpper() error {
	// The overlay is still mounted in our own namespace, and it holds the layer.
	return errors.Join(unmount(filepath.Join(o.dir.path, rootName)), o.upper.remove())
}

// lowerLayers returns the directories that the root consists of, lowest first.
func (o *operation) lowerLayers(ctx context.Context) ([]string, image.Config, error) {
	if o.flags.rootfs != "" {
		dir, err := filepath.Abs(o.flags.rootfs)
		if err != nil {
			return nil, image.Config{}, err
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, image.Config{}, fmt.Errorf("--rootfs %q: not a directory", o.flags.rootfs)
		}
		return []string{dir}, image.Config{WorkingDir: "/"}, nil
	}
	store, err := image.OpenStore(filepath.Join(o.flags.paths.data, imagesName), image.Limits{})
	if err != nil {
		return nil, image.Config{}, err
	}
	defer store.Close()
	archive, err := image.Open(o.flags.image, store.TempDir(), image.Limits{})
	if err != nil {
		return nil, image.Config{}, err
	}
	defer archive.Close()
	img, err := archive.Select(o.flags.imageName, image.Platform{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		return nil, image.Config{}, err
	}
	layers, unpacked, err := store.Unpack(ctx, archive, img)
	if err != nil {
		return nil, image.Config{}, err
	}
	if unpacked.SkippedDevices > 0 {
		o.note(fmt.Sprintf("image: %d device nodes were left out; the container has its own /dev", unpacked.SkippedDevices))
	}
	return layers, img.Config, nil
}

func (o *operation) lookupUser(rootDir, fromImage string) error {
	text := fromImage
	if o.flags.user != "" {
		text = o.flags.user
	}
	root, err := os.Open(rootDir)
	if err != nil {
		return fmt.Errorf("look up user: %w", err)
	}
	defer root.Close()
	u, err := image.LookupUser(root, text)
	if err != nil {
		return err
	}
	o.user = task.User{UID: u.UID, GID: u.GID, Groups: u.Groups, Name: u.Name, Home: u.Home}
	return nil
}

// note tells the caller something that is no error.
func (o *operation) note(message string) {
	o.notes = append(o.notes, message)
	if !o.flags.quiet && !o.flags.json {
		fmt.Fprintln(os.Stderr, "agentsafectl: note:", message)
	}
}

// result is what --json prints.
type result struct {
	ID       string   `json:"id"`
	Profile  string   `json:"profile"`
	Command  []string `json:"command"`
	ExitCode int      `json:"exitCode"`
	TimedOut bool     `json:"timedOut"`
	// End is why a limit has ended the task, or which limits it has met.
	End            *container.End `json:"end,omitempty"`
	DurationMillis int64          `json:"durationMillis"`
	Stdout         text           `json:"stdout"`
	Stderr         text           `json:"stderr"`
	DroppedStdout  int64          `json:"stdoutDroppedBytes,omitempty"`
	DroppedStderr  int64          `json:"stderrDroppedBytes,omitempty"`
	Notes          []string       `json:"notes,omitempty"`
	// Denials is what `profile test` has found.
	Denials []denials.Denial `json:"denials,omitempty"`
}

// text is captured output: a JSON string, or {"base64": ...} if it is not UTF-8.
type text []byte

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.Valid(t) {
		return json.Marshal(string(t))
	}
	return json.Marshal(map[string][]byte{"base64": t})
}

func (o *operation) report(out outcome, captured *[2]capture) error {
	res := result{
		ID: o.request.ID, Profile: o.flags.profile, Command: o.request.Command,
		ExitCode: out.status, TimedOut: out.timedOut, End: out.end, DurationMillis: time.Since(o.started).Milliseconds(),
		Stdout: captured[0].kept.Bytes(), Stderr: captured[1].kept.Bytes(),
		DroppedStdout: captured[0].dropped, DroppedStderr: captured[1].dropped, Notes: o.notes,
	}
	if out.timedOut {
		res.ExitCode = exitTimeout
	}
	if o.denials != nil {
		res.Denials = o.denials()
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(res); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// spec returns the plan's spec, for the runtime.
func (o *operation) spec() *specs.Spec { return o.plan.Spec }
