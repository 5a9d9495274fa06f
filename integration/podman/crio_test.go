package podman

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/integration/harness"
)

// crio does what CRI-O does with a runtime, by CRI-O's own monitor: namespaces of the pod are pinned before any container,
// conmon creates and watches each container and exec, everything else is the runtime's command line. Source: cri-o,
// internal/oci/runtime_oci.go.
type crio struct {
	t    *testing.T
	p    harness.Peer
	bare *harness.Bare
	// pod has the pinned namespaces, run the exit files and attach sockets.
	pod, run string
}

func newCRIO(t *testing.T, p harness.Peer) *crio {
	t.Helper()
	c := &crio{t: t, p: p, bare: box.Bare(t, p), pod: box.TempDir(t), run: "/run/crio-test-" + p.Name}
	if err := os.MkdirAll(filepath.Join(c.run, "exits"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(c.run); err != nil {
			t.Error(err)
		}
	})
	// What CRI-O's pinns does.
	box.MustRun(t, "sh", "-ec", "cd $0; touch net ipc uts; unshare --net=net --ipc=ipc --uts=uts sh -c 'hostname pod; ip link set lo up'", c.pod)
	t.Cleanup(func() { box.MustRun(t, "umount", c.pod+"/net", c.pod+"/ipc", c.pod+"/uts") })
	return c
}

// container makes a bundle in the pod, as CRI-O annotates it.
func (c *crio) container(script string, mutate func(*specs.Spec)) harness.Bundle {
	return box.Bundle(c.t, func(s *specs.Spec) {
		harness.Sh(script)(s)
		s.Annotations = map[string]string{"io.kubernetes.cri-o.ContainerType": "container", "io.kubernetes.cri-o.SandboxID": "pod", "io.container.manager": "cri-o"}
		s.Hostname = ""
		for i, ns := range s.Linux.Namespaces {
			if file, shared := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts"}[ns.Type]; shared {
				s.Linux.Namespaces[i].Path = filepath.Join(c.pod, file)
			}
		}
		if mutate != nil {
			mutate(s)
		}
	})
}

// told is what conmon writes on its pipe: the process of a container that is created (below zero: an error), or how an
// exec has ended.
type told struct {
	Pid      int    `json:"pid"`
	ExitCode int    `json:"exit_code"`
	Message  string `json:"message"`
}

func (c *crio) conmon(id string, more ...string) told {
	c.t.Helper()
	message, toMessage, err := os.Pipe()
	start, toStart, serr := os.Pipe()
	if err := errors.Join(err, serr); err != nil {
		c.t.Fatal(err)
	}
	defer message.Close()
	args := append([]string{
		"/usr/bin/conmon", "-c", id, "-n", "k8s_" + id, "-u", id, "-r", c.p.Path, "--runtime-arg", "--root=" + c.bare.Root,
		"--socket-dir-path", c.run, "--log-level", "info",
	}, more...)
	_, werr := toStart.Write([]byte{0}) // it waits until it is in its cgroup
	r := box.Start(c.t, harness.Cmd{Args: args, Files: []*os.File{toMessage, start}, Env: []string{"_OCI_SYNCPIPE=3", "_OCI_STARTPIPE=4"}})
	var out told
	err = errors.Join(werr, toMessage.Close(), start.Close(), toStart.Close(), message.SetReadDeadline(time.Now().Add(time.Minute)),
		json.NewDecoder(message).Decode(&out))
	result := r.Wait(c.t)
	if err != nil {
		c.t.Fatalf("what conmon tells: %v\n%v", err, result)
	}
	return out
}

func (c *crio) create(b harness.Bundle, more ...string) told {
	c.t.Helper()
	more = append([]string{"-b", b.Dir, "-p", filepath.Join(b.Dir, "pidfile"), "-P", filepath.Join(b.Dir, "conmon-pidfile"), "--persist-dir", b.Dir, "--exit-dir", filepath.Join(c.run, "exits"), "-l", filepath.Join(b.Dir, "log")}, more...)
	return c.conmon(b.ID, more...)
}

// exec runs a process as ExecSync does: by a file of the process and a log of its own.
func (c *crio) exec(b harness.Bundle, args ...string) (status int, output string) {
	c.t.Helper()
	dir := box.TempDir(c.t)
	process, err := json.Marshal(specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}})
	if err != nil {
		c.t.Fatal(err)
	}
	file, log := filepath.Join(dir, "process"), filepath.Join(dir, "log")
	if err := os.WriteFile(file, process, 0o600); err != nil {
		c.t.Fatal(err)
	}
	out := c.conmon(b.ID, "-e", "--exec-process-spec", file, "-b", b.Dir, "-p", filepath.Join(dir, "pidfile"), "-l", log)
	lines := strings.Split(logged(c.t, log), "\n")
	slices.Sort(lines) // two pipes have no order
	return out.ExitCode, strings.TrimSpace(strings.Join(lines, "; "))
}

// logged is the text in a log of Kubernetes' form, without times.
func logged(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			out.WriteString(fields[1] + " " + fields[3])
		}
	}
	return out.String()
}

// ended waits for conmon's word of how a container ended.
func (c *crio) ended(b harness.Bundle) int {
	c.t.Helper()
	file := filepath.Join(c.run, "exits", b.ID)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		data, err := os.ReadFile(file)
		if status, nerr := strconv.Atoi(string(data)); err == nil && nerr == nil {
			return status
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %v %q", file, err, data)
		}
	}
}

// waitLogged polls until a container's log has a text.
func (c *crio) waitLogged(b harness.Bundle, text string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(logged(c.t, filepath.Join(b.Dir, "log")), text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("the log never says %q", text)
		}
	}
}

// TestCRIO has a pod of two containers live as under CRI-O.
func TestCRIO(t *testing.T) {
	harness.SideBySide(t, func(t *testing.T, p harness.Peer) harness.Result {
		c := newCRIO(t, p)
		server := c.container("exec probe serve :80 served", nil)
		const talk = `hostname; until probe get http://127.0.0.1; do sleep 0.1; done; echo up; read a; echo got $a; trap "exit 9" TERM; echo ready; while :; do sleep 0.05; done`
		client := c.container(talk, func(s *specs.Spec) { s.Process.User.UID = 1000 })
		var pids []any
		for _, b := range []harness.Bundle{server, client} {
			pids = append(pids, c.create(b, "-i").Pid > 0, c.bare.State(t, b.ID).Status)
			c.bare.Must(t, "start", b.ID)
		}
		c.waitLogged(client, "up")
		attach, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(c.run, client.ID, "attach"), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer attach.Close()
		if _, err := attach.Write([]byte("word\n")); err != nil {
			t.Fatal(err)
		}
		c.waitLogged(client, "ready")
		status, output := c.exec(client, "sh", "-c", "id -u; cat /proc/1/comm; echo no >&2; exit 5")
		missing, _ := c.exec(client, "/no/such/program")
		update := box.Run(t, harness.Cmd{Args: c.bare.Args("update", "--resources", "-", client.ID), Stdin: `{"pids": {"limit": 44}}`})
		c.bare.Must(t, "pause", client.ID)
		paused := c.bare.State(t, client.ID).Status
		c.bare.Must(t, "resume", client.ID)
		c.bare.Must(t, "kill", client.ID, strconv.Itoa(int(unix.SIGTERM)))
		ends := []any{c.ended(client), c.bare.State(t, client.ID).Status}
		c.bare.Must(t, "delete", client.ID)
		c.bare.Must(t, "delete", "--force", server.ID)
		ends = append(ends, c.ended(server))
		log := strings.ReplaceAll(logged(t, filepath.Join(client.Dir, "log")), "\n", "; ")
		return result(pids, status, output, missing != 0, update.Exit, paused, ends, log)
	}, harness.Same, harness.Prints(`^\[true created true created\]\n5\n; stderr no; stdout 0; stdout sh\ntrue\n0\npaused\n\[9 stopped 137\]\nstdout pod; .*stdout served; stdout up; stdout got word; stdout ready; \n$`))
}

// TestCRIORefusal: what the profile refuses reaches CRI-O in the runtime's words, and nothing stays behind.
func TestCRIORefusal(t *testing.T) {
	_, ours := harness.Peers(t)
	c := newCRIO(t, ours)
	b := c.container("true", func(s *specs.Spec) {
		for _, set := range []*[]string{&s.Process.Capabilities.Bounding, &s.Process.Capabilities.Effective, &s.Process.Capabilities.Permitted} {
			*set = append(*set, "CAP_NET_ADMIN")
		}
	})
	if out := c.create(b); out.Pid > 0 || !strings.Contains(out.Message, "process.capabilities CAP_NET_ADMIN") || !strings.Contains(out.Message, "allowed by") {
		t.Errorf("conmon tells %+v", out)
	}
	if r := c.bare.Do(t, "state", b.ID); r.Exit == 0 {
		t.Errorf("a container is there:\n%v", r)
	}
}
