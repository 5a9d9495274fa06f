package call

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// Denial is something that was refused while a command ran.
type Denial struct {
	// Kind is "network", "memory" or "processes".
	Kind string `json:"kind"`
	// What was asked for: a host with its port. Empty for limits.
	What   string `json:"what,omitempty"`
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// Bounds of what is read after one command.
const (
	maxDenials  = 50
	maxLogBytes = 1 << 20
)

// mark is where the counters of a container stood when a command began.
type mark struct {
	log          int64
	oom, refused uint64
}

func measure(c *container.Container) mark {
	var m mark
	if f := networkLog(c); f != nil {
		if st, err := f.Stat(); err == nil {
			m.log = st.Size()
		}
		f.Close()
	}
	m.oom, m.refused = counters(c)
	return m
}

// counters are what the kernel has refused; without a cgroup of that kind, nothing.
func counters(c *container.Container) (oom, refused uint64) {
	oom, err := c.OOMKills()
	if err != nil {
		oom = 0
	}
	if refused, err = c.PIDsRefused(); err != nil {
		refused = 0
	}
	return oom, refused
}

// networkLog opens the gateway's log; nil if there is no gateway.
func networkLog(c *container.Container) *os.File {
	fd, err := unix.Openat(int(c.Dir().Fd()), container.NetworkLog, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), container.NetworkLog)
}

// denials are what has been refused since.
func (m mark) denials(c *container.Container) []Denial {
	var out []Denial
	oom, refused := counters(c)
	if n := oom - m.oom; oom > m.oom {
		out = append(out, Denial{Kind: "memory", Reason: "out of memory: the kernel has ended processes (limits.memory)", Count: int(n)}) //nolint:gosec // processes fit
	}
	if n := refused - m.refused; refused > m.refused {
		out = append(out, Denial{Kind: "processes", Reason: "too many processes: forks were refused (limits.pids)", Count: int(n)}) //nolint:gosec // forks fit
	}
	f := networkLog(c)
	if f == nil {
		return out
	}
	defer f.Close()
	return append(out, refusals(io.NewSectionReader(f, m.log, maxLogBytes))...)
}

// networkEvent is a line of the gateway's log, as far as it is told here.
type networkEvent struct {
	Decision string `json:"decision"`
	Name     string `json:"name"`
	Address  string `json:"address"`
	Port     uint16 `json:"port"`
	Reason   string `json:"reason"`
	Count    int    `json:"count"`
}

// refusals gathers the refusals in a gateway's log: one for each destination.
func refusals(log io.Reader) []Denial {
	var out []Denial
	at := map[string]int{}
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var e networkEvent
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Decision != "refuse" {
			continue
		}
		what := e.Name
		if what == "" {
			what = e.Address
		}
		if e.Port != 0 {
			what = net.JoinHostPort(what, strconv.Itoa(int(e.Port)))
		}
		if i, ok := at[what]; ok {
			out[i].Count += max(e.Count, 1)
			continue
		}
		if len(out) == maxDenials {
			continue
		}
		at[what] = len(out)
		out = append(out, Denial{Kind: "network", What: Visible(what), Reason: Visible(e.Reason), Count: max(e.Count, 1)})
	}
	return out
}

// String is one line for people.
func (d Denial) String() string {
	if d.What == "" {
		return fmt.Sprintf("%s: %s (%d)", d.Kind, d.Reason, d.Count)
	}
	return fmt.Sprintf("%s: %s: %s (%d)", d.Kind, d.What, d.Reason, d.Count)
}
