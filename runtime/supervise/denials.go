package supervise

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/netns"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// denialWatch collects what the container is refused, for the container itself and for people. It enforces nothing:
// whatever it misses was refused all the same.
type denialWatch struct {
	log     *denials.Log
	profile *profiles.Profile // with its paths expanded
	kernel  *denials.Reader   // nil without
	cgroups []string          // the container's lines of /proc/PID/cgroup
	domains map[string]string // of Landlock, of this container: the exec that has made each, by its branch
	// waiting are refusals by domains of which nobody has said yet whose they are: the kernel tells of a domain after the
	// first refusal that it logs of it.
	waiting map[string][]denials.Message
	recent  recent
	// execs tells the first process of an exec that runs, and its branch ("" for none).
	execs func(pid int) (branch string, running bool)

	mu      sync.Mutex // of network
	network *os.File
	rest    []byte // of a line of the gateway's that is not complete
	// line is told of each complete one.
	line func(line []byte)
}

// startDenials opens the file that the container reads, and writes down what its creation was refused.
func (s *Supervisor) startDenials() error {
	out, err := s.c.OpenDenials()
	if errors.Is(err, unix.ENOENT) {
		return nil // the profile has no rules, or an older agentsafe has created the container
	}
	if err != nil {
		return err
	}
	d, err := s.c.Detail()
	if err != nil {
		out.Close()
		return err
	}
	w := &denialWatch{log: denials.NewLog(out), domains: map[string]string{}, profile: d.Policy.Profile, line: s.gatewayLimit, execs: s.branchOf}
	if told, err := s.c.InForce(); err == nil {
		w.profile = told
	}
	s.denials = w
	for _, n := range d.Policy.Notes {
		if !n.Routine {
			w.log.Add(denials.Denial{Kind: denials.Policy, What: n.Text, Rule: n.Rule})
		}
	}
	if w.profile.Evidence.Denials == profiles.DenialsKernel {
		s.listenToKernel()
	}
	return nil
}

// listenToKernel hears of refused system calls and files. Where that is not possible the file says so.
func (s *Supervisor) listenToKernel() {
	w := s.denials
	var err error
	if w.cgroups, err = cgroupLines(s.c.State().InitPID); err == nil && len(w.cgroups) == 0 {
		err = errors.New("the container has no control group of its own")
	}
	if err == nil {
		w.kernel, err = denials.Listen()
	}
	if err != nil {
		w.log.Add(denials.Denial{Kind: denials.Note, What: "refused system calls and files are not listed", Why: err.Error()})
		return
	}
	s.group.Go(func() {
		for {
			m, err := w.kernel.Read()
			if err != nil {
				return // closed
			}
			list, branch := w.explain(&m)
			for _, d := range list {
				s.refused(d, branch)
			}
		}
	})
}

// branchOf tells whether a process is the first one of an exec that runs, or has ended and was not told of, and its branch.
func (s *Supervisor) branchOf(pid int) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.execs[pid]
	if r == nil {
		return "", false
	}
	if r.branch == nil {
		return "", true
	}
	return filepath.Base(r.branch.Dir()), true
}

// refused adds a refusal that is worth a record of its own. branch is the exec's that it was refused to, "" for no one's.
func (s *Supervisor) refused(d denials.Denial, branch string) {
	s.denials.recent.add(d, branch)
	if s.denials.log.Add(d) {
		s.record(audit.TypeDenial, d) //nolint:errcheck // it is refused in any case, and the log says that something is missing
	}
}

// explain says which container a message is about, and which rule of the profile refused it; branch is the exec's that is
// about, if it has one. Most messages are of other tasks, or tell of no refusal.
func (w *denialWatch) explain(m *denials.Message) (list []denials.Denial, branch string) {
	switch {
	case m.IsSyscall():
		branch, ours := w.owner(m.PID)
		if !ours {
			return nil, ""
		}
		name := denials.CallName(m.Arch, m.Call)
		if name == "clone3" {
			return nil, "" // every libc asks, and takes clone instead
		}
		d := denials.Denial{Time: m.Time, Kind: denials.Syscall, What: name, Answer: "an error", Program: m.Program}
		switch a := profiles.ExplainSyscall(w.profile, name, denials.GOARCH(m.Arch)); a.Verdict {
		case profiles.VerdictRefused:
			d.Answer, d.Rule, d.Why, d.Allow = "EPERM", a.Rule, a.Why, a.Allow
		case profiles.VerdictDepends:
			d.Rule, d.Why, d.Allow = a.Rule, a.Why, a.Allow
		default:
			d.Rule, d.Why = "linux.seccomp", "the engine's own filter refuses it (docker run --security-opt seccomp=...)"
		}
		return []denials.Denial{d}, branch
	case m.NewDomain:
		early := w.waiting[m.Domain]
		delete(w.waiting, m.Domain)
		branch, ours := w.owner(m.PID)
		if !ours {
			return nil, ""
		}
		w.domains[m.Domain] = branch
		for i := range early {
			list = append(list, w.explainLandlock(&early[i]))
		}
		return list, branch
	}
	if branch, known := w.domains[m.Domain]; known {
		return []denials.Denial{w.explainLandlock(m)}, branch
	}
	w.wait(m)
	return nil, ""
}

// wait keeps a refusal until it is known whose it is. Those of domains that were there before anybody listened wait in
// vain: they are dropped when they are many.
func (w *denialWatch) wait(m *denials.Message) {
	const mostDomains, mostEach = 64, 16
	if len(w.waiting) >= mostDomains && w.waiting[m.Domain] == nil {
		w.waiting = nil
	}
	if w.waiting == nil {
		w.waiting = map[string][]denials.Message{}
	}
	if list := w.waiting[m.Domain]; len(list) < mostEach {
		w.waiting[m.Domain] = append(list, *m)
	}
}

// explainLandlock is about a file, a port or a scope.
func (w *denialWatch) explainLandlock(m *denials.Message) denials.Denial {
	blocked := strings.Join(m.Blockers, ", ")
	d := denials.Denial{Time: m.Time, Kind: denials.File, What: blocked, Answer: "EACCES", Rule: "landlock", Program: m.Program}
	switch {
	case strings.HasPrefix(blocked, "net."):
		use := profiles.PortConnect
		if blocked == "net.bind_tcp" {
			use = profiles.PortListen
		}
		d.Kind, d.What, d.Why = denials.Network, fmt.Sprintf("%s TCP port %d", use, m.Port), blocked
		if a := profiles.ExplainPort(w.profile, use, uint16(m.Port)); a.Verdict == profiles.VerdictRefused { //nolint:gosec // a port
			d.Rule, d.Allow = a.Rule, a.Allow
		}
		return d
	case !strings.HasPrefix(blocked, "fs.") || m.Path == "":
		d.Answer = "EPERM"
		return d
	}
	access := "write"
	if strings.Contains(blocked, "fs.execute") {
		access = "execute"
	} else if strings.Trim(strings.ReplaceAll(strings.ReplaceAll(blocked, "fs.read_file", ""), "fs.read_dir", ""), ", ") == "" {
		access = "read"
	}
	d.What, d.Why = access+" "+m.Path, blocked
	for _, a := range profiles.ExplainPath(w.profile, m.Path) {
		if a.Rule == "filesystem."+access && a.Verdict == profiles.VerdictRefused {
			d.Rule, d.Allow = a.Rule, a.Allow
		}
	}
	return d
}

// owner reports whether a process is the container's, or its parent is (a process that has ended and was not reaped has no
// control group any more on cgroup v1), and the branch of the exec that it belongs to.
func (w *denialWatch) owner(pid int) (branch string, ours bool) {
	if w.execs != nil {
		if branch, ours = w.execs(pid); ours {
			return branch, true
		}
	}
	for range 2 {
		lines, err := cgroupLines(pid)
		if err != nil {
			return "", false
		}
		for _, l := range lines {
			for _, own := range w.cgroups {
				below, under := strings.CutPrefix(l, own+"/")
				if under {
					branch, _, _ = strings.Cut(below, "/")
				}
				ours = ours || under || l == own
			}
		}
		if ours || len(lines) > 0 {
			return branch, ours
		}
		if pid = parentOf(pid); pid <= 1 {
			return "", false
		}
	}
	return "", false
}

// cgroupLines returns the lines of /proc/PID/cgroup that name something else than the root.
func cgroupLines(pid int) ([]string, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read control groups: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasSuffix(line, ":/") {
			out = append(out, line)
		}
	}
	return out, nil
}

func parentOf(pid int) int {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, after, ok := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), ") ")
	if words := strings.Fields(after); ok && len(words) > 1 {
		parent, err := strconv.Atoi(words[1])
		if err == nil {
			return parent
		}
	}
	return 0
}

// watchNetwork takes the gateway's refusals over as they come. The gateway writes its log in the state directory, and
// start has started it.
func (s *Supervisor) watchNetwork() {
	w := s.denials
	if w == nil || s.c.State().Network != netns.ModeGateway {
		return
	}
	fd, err := unix.Openat(int(s.c.Dir().Fd()), container.NetworkLog, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return // the gateway is another container's of the same pod
	}
	w.mu.Lock()
	w.network = os.NewFile(uintptr(fd), container.NetworkLog)
	w.mu.Unlock()
	notify, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return // what there is then is read at the end
	}
	events := os.NewFile(uintptr(notify), "inotify")
	if _, err := unix.InotifyAddWatch(notify, "/proc/self/fd/"+strconv.Itoa(fd), unix.IN_MODIFY); err != nil {
		events.Close()
		return
	}
	s.group.Go(func() {
		<-s.ctx.Done()
		events.Close()
	})
	s.group.Go(func() {
		buf := make([]byte, 4<<10)
		for {
			w.drain()
			if _, err := events.Read(buf); err != nil {
				return
			}
		}
	})
}

// drain reads what the gateway has written since.
func (w *denialWatch) drain() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.network == nil {
		return
	}
	const maxLine = 64 << 10
	r := bufio.NewReaderSize(w.network, maxLine)
	for {
		chunk, err := r.ReadSlice('\n')
		w.rest = append(w.rest, chunk...)
		if err == nil {
			w.line(w.rest)
			if d, ok := denials.FromGateway(w.rest); ok {
				w.recent.add(d, branchOfLine(w.rest))
				w.log.Add(d)
			}
		}
		if err == nil || len(w.rest) > maxLine {
			w.rest = w.rest[:0]
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if !errors.Is(err, io.EOF) {
				w.network.Close()
				w.network = nil
			}
			return
		}
	}
}

// branchOfLine is the branch of the exec whose connection a line of the gateway's is about, "" if that is not known.
func branchOfLine(line []byte) string {
	var by struct {
		Branch string `json:"branch"`
	}
	if json.Unmarshal(line, &by) != nil {
		return ""
	}
	return by.Branch
}

// begins makes the branch of a command known.
func (w *denialWatch) begins(branch string) {
	if w != nil {
		w.recent.begins(branch)
	}
}

// limitMet adds a limit of the container's.
func (w *denialWatch) limitMet(e *container.End) {
	if w == nil || e == nil {
		return
	}
	if e.Reason != "" {
		w.log.Add(denials.Denial{Time: e.At, Kind: denials.Limit, What: string(e.Reason), Answer: "ended", Why: e.Message})
	}
	if e.PIDsRefused > 0 {
		w.log.Add(denials.Denial{
			Kind: denials.Limit, What: "pids", Answer: "EAGAIN", Rule: "limits.pids", Count: int(min(e.PIDsRefused, 1<<30)), //nolint:gosec // bounded
			Why: fmt.Sprintf("%d processes could not be started", e.PIDsRefused), Allow: "limits: {pids: ...}",
		})
	}
}

// stop ends what startDenials and watchNetwork have started; the goroutines end with the supervisor.
func (w *denialWatch) stop() {
	if w == nil {
		return
	}
	if w.kernel != nil {
		w.kernel.Close()
	}
	w.mu.Lock()
	if w.network != nil {
		w.network.Close()
		w.network = nil
	}
	w.mu.Unlock()
	w.log.Close()
}
