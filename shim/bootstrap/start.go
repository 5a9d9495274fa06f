package bootstrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/shim/options"
)

// start answers with the address of the container's shim, which it starts if the container's group has none.
func (c *command) start(in io.Reader, out io.Writer) error {
	input, err := readInput(in)
	if err != nil {
		return err
	}
	params := c.params(input)
	dir := socketDir
	if params.GetSocketDir() != "" {
		dir = params.GetSocketDir()
	}
	if err := checkSocketDir(dir); err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find bundle: %w", err)
	}
	g, err := group(cwd, c.id)
	if err != nil {
		return err
	}
	path := socketPath(dir, c.address, c.namespace, g)
	// Where delete finds the socket, and what older engines look for. Before there is one: whenever we are killed, what
	// exists has its name in the bundle.
	if err := os.WriteFile(filepath.Join(cwd, "address"), []byte("unix://"+path), 0o600); err != nil {
		return fmt.Errorf("write address: %w", err)
	}
	if !alive(path) {
		if err := c.launch(path, params); err != nil {
			return err
		}
	}
	answer, err := answerStart(params, path)
	if err != nil {
		return err
	}
	_, err = out.Write(answer)
	return err
}

// params returns the bootstrap parameters of containerd 2.3 and newer; nil if an older one asks, which gives options or
// nothing. Options can look like parameters, so that the names must match the command line's.
func (c *command) params(input []byte) *bootapi.BootstrapParams {
	var p bootapi.BootstrapParams
	if len(input) == 0 || proto.Unmarshal(input, &p) != nil || p.InstanceID != c.id || p.Namespace != c.namespace {
		return nil
	}
	return &p
}

// answerStart writes the address in the form that the caller takes.
func answerStart(p *bootapi.BootstrapParams, path string) ([]byte, error) {
	if p == nil {
		return []byte("unix://" + path), nil
	}
	// An empty list says that containerd does all mounts that need more than mount(2), and saves it from asking.
	none, err := anypb.New(&types.MountCapabilities{})
	if err != nil {
		return nil, fmt.Errorf("encode mount capabilities: %w", err)
	}
	none.TypeUrl = none.TypeUrl[strings.LastIndexByte(none.TypeUrl, '/')+1:]
	return proto.Marshal(&bootapi.BootstrapResult{
		Version: 3, Protocol: "ttrpc", Address: "unix://" + path, Extensions: []*bootapi.Extension{{Value: none}},
	})
}

// launch starts the shim with its socket as descriptor 3, and gives the socket its name. In this order: if we are killed
// between the two, there is a process that ends by itself (idleTime) and no socket that nobody will ever remove. Another
// start of the same group may have been faster; then its shim is the one.
func (c *command) launch(path string, params *bootapi.BootstrapParams) error {
	socket, err := newSocket()
	if err != nil {
		return err
	}
	defer socket.Close()
	pid, err := c.spawn(socket, path, params)
	if err != nil {
		return err
	}
	err = listen(socket, path)
	if err == nil {
		err = errors.Join(adjustOOMScore(pid), joinCgroup(pid, params))
		if err == nil {
			return nil
		}
		unix.Unlink(path) //nolint:errcheck // the first error is the one to report
	}
	unix.Kill(pid, unix.SIGKILL) //nolint:errcheck // gone is what we want
	unix.Wait4(pid, nil, 0, nil) //nolint:errcheck // likewise
	if errors.Is(err, errInUse) {
		return nil
	}
	return err
}

// spawn starts the shim and returns its number. Not by os.StartProcess, which in a program's first call clones another
// child to see whether pidfds work, for a millisecond.
func (c *command) spawn(socket *os.File, path string, params *bootapi.BootstrapParams) (int, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer null.Close()
	argv := []string{os.Args[0], "-namespace", c.namespace, "-id", c.id, "-address", c.address, "-socket", path}
	if c.profile != "" {
		argv = append(argv, "-profile", c.profile)
	}
	if handler, err := handlerOptions(params); err != nil {
		return 0, err
	} else if handler != "" {
		argv = append(argv, "-options", handler)
	}
	if c.debug || params.GetLogLevel() <= bootapi.LogLevel_LOG_LEVEL_DEBUG {
		argv = append(argv, "-debug")
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find program: %w", err)
	}
	pid, _, err := syscall.StartProcess(self, argv, &syscall.ProcAttr{
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), socket.Fd()},
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

// handlerOptions are the handler's options as JSON, "" if it has none: a sandbox gets them by no other way.
func handlerOptions(params *bootapi.BootstrapParams) (string, error) {
	for _, e := range params.GetExtensions() {
		o, err := options.Parse(e.GetValue())
		if errors.Is(err, options.ErrUnknownType) {
			continue // an extension for somebody else
		}
		if err != nil {
			return "", err
		}
		if o == (options.Options{}) {
			continue
		}
		data, err := json.Marshal(o)
		if err != nil {
			return "", fmt.Errorf("encode options: %w", err)
		}
		return string(data), nil
	}
	return "", nil
}

// joinCgroup moves the shim to the cgroup that the handler's options name.
func joinCgroup(pid int, params *bootapi.BootstrapParams) error {
	for _, e := range params.GetExtensions() {
		o, err := options.Parse(e.GetValue())
		if errors.Is(err, options.ErrUnknownType) {
			continue // an extension for somebody else
		}
		if err != nil {
			return err
		}
		if o.ShimCgroup == "" {
			continue
		}
		joined := false
		for _, dir := range hierarchies() {
			name := filepath.Join(dir, o.ShimCgroup, "cgroup.procs")
			switch err := os.WriteFile(name, []byte(strconv.Itoa(pid)), 0); {
			case err == nil:
				joined = true
			case !errors.Is(err, os.ErrNotExist):
				return fmt.Errorf("move shim to cgroup %s: %w", o.ShimCgroup, err)
			}
		}
		if !joined {
			return fmt.Errorf("move shim to cgroup %s: it does not exist", o.ShimCgroup)
		}
	}
	return nil
}

// hierarchies are the mount points of cgroup file systems: one on v2, one per controller on v1.
func hierarchies() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{root}
	}
	dirs, _ := filepath.Glob(root + "/*") //nolint:errcheck // the pattern is valid
	return dirs
}
