package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/entry"
	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/cmdline"
	"github.com/agentsafe/agentsafe/shim/socket"
)

// start answers with the address of the container's shim, which it starts if the container's group has none.
func (c *command) start(in io.Reader, out io.Writer) error {
	input, err := cmdline.ReadInput(in)
	if err != nil {
		return err
	}
	p := c.params(input)
	dir := socket.DefaultDir
	if p != nil && p.socketDir != "" {
		dir = p.socketDir
	}
	if err := socket.CheckDir(dir); err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find bundle: %w", err)
	}
	g, err := group(cwd, c.ID)
	if err != nil {
		return err
	}
	path := socket.Path(dir, c.Address, c.Namespace, g)
	// Where delete finds the socket, and what older engines look for. Before there is one: whenever we are killed, what
	// exists has its name in the bundle.
	if err := os.WriteFile(filepath.Join(cwd, bundle.AddressFile), []byte("unix://"+path), 0o600); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	if !socket.Alive(path) {
		h := &handler{debug: c.Debug}
		if p != nil {
			h.debug = h.debug || p.logLevel <= debugLevel
			if p.settings {
				if err := h.read(input); err != nil {
					return err
				}
			}
		}
		if err := c.launch(path, h); err != nil {
			return err
		}
	}
	_, err = out.Write(answerStart(p, path))
	return err
}

// launch starts the shim with its socket as descriptor 3, and gives the socket its name. In this order: if we are killed
// between the two, there is a process that ends by itself (idleTime) and no socket that nobody will ever remove. Another
// start of the same group may have been faster; then its shim is the one.
func (c *command) launch(path string, h *handler) error {
	f, err := socket.New()
	if err != nil {
		return err
	}
	defer f.Close()
	pid, err := c.spawn(f, path, h)
	if err != nil {
		return err
	}
	err = socket.Listen(f, path)
	if err == nil {
		err = errors.Join(adjustOOMScore(pid), joinCgroup(pid, h.ShimCgroup))
		if err == nil {
			return nil
		}
		unix.Unlink(path) //nolint:errcheck // the first error is the one to report
	}
	unix.Kill(pid, unix.SIGKILL) //nolint:errcheck // gone is what we want
	unix.Wait4(pid, nil, 0, nil) //nolint:errcheck // likewise
	if errors.Is(err, socket.ErrInUse) {
		return nil
	}
	return err
}

// spawn starts the shim and returns its number.
func (c *command) spawn(f *os.File, path string, h *handler) (int, error) {
	shim, err := shimPath()
	if err != nil {
		return 0, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	argv := []string{c.program, "-namespace", c.Namespace, "-id", c.ID, "-address", c.Address, "-socket", path}
	if c.Profile != "" {
		argv = append(argv, "-profile", c.Profile)
	}
	if h.options != "" {
		argv = append(argv, "-options", h.options)
	}
	if h.debug {
		argv = append(argv, "-debug")
	}
	pid, err := entry.StartProcess(shim, argv, &syscall.ProcAttr{
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), f.Fd()},
		Env:   environment(os.Environ()),
		// A signal for containerd's process group must not end its containers.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start shim: %w", err)
	}
	return pid, nil
}

// environment is the shim's: the caller's, but for what only concerned start.
func environment(env []string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, "GOMAXPROCS=") {
			out = append(out, kv)
		}
	}
	// A stack and caches for each of many processors would be most of the shim's memory.
	return append(out, "GOMAXPROCS=2")
}

// adjustOOMScore makes the kernel prefer the shim to containerd, by one.
func adjustOOMScore(pid int) error {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/oom_score_adj")
	if err != nil {
		return fmt.Errorf("read oom score of containerd: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("read oom score of containerd: %w", err)
	}
	const most = 1000
	score = min(score+1, most)
	if err := os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set oom score of shim: %w", err)
	}
	return nil
}

// handler is what containerd's configuration says about the runtime handler.
type handler struct {
	// ShimCgroup is the cgroup that the shim moves to; "" leaves it where containerd is.
	ShimCgroup string `json:"shimCgroup"`
	options    string // all of them as JSON, "" if there are none: a sandbox gets them by no other way
	debug      bool
}

// read has the shim's program read the settings, whose types it knows.
func (h *handler) read(input []byte) error {
	path, err := shimPath()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, "-handler") //nolint:noctx // containerd ends its call
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &said
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(said.String()); text != "" {
			return errors.New(strings.TrimPrefix(text, Name+": "))
		}
		return fmt.Errorf("read the handler's settings: %w", err)
	}
	if h.options = out.String(); h.options == "" {
		return nil
	}
	if err := json.Unmarshal(out.Bytes(), h); err != nil {
		return fmt.Errorf("read the handler's settings: %w", err)
	}
	return nil
}

// joinCgroup moves the shim to the cgroup that the handler's settings name.
func joinCgroup(pid int, cgroup string) error {
	if cgroup == "" {
		return nil
	}
	joined := false
	for _, dir := range hierarchies() {
		name := filepath.Join(dir, cgroup, "cgroup.procs")
		switch err := os.WriteFile(name, []byte(strconv.Itoa(pid)), 0); {
		case err == nil:
			joined = true
		case !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("move shim to cgroup %s: %w", cgroup, err)
		}
	}
	if !joined {
		return fmt.Errorf("move shim to cgroup %s: it does not exist", cgroup)
	}
	return nil
}

// hierarchies are the mount points of cgroup file systems: one on v2, one per controller on v1.
func hierarchies() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{root}
	}
	dirs, _ := filepath.Glob(root + "/*")
	return dirs
}
