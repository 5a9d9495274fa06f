package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/safepath"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// layerPoll is how often it is looked whether layers with a limit are full: the kernel answers ENOSPC to the task and
// tells nobody else.
const layerPoll = 250 * time.Millisecond

// met tells of a limit that refuses something and does not end the container: in its state at once, in the evidence, and
// to the container itself.
func (s *Supervisor) met(e container.End, answer, allow string, count func(counts *container.End)) {
	e.At = time.Now().UTC()
	s.mu.Lock()
	s.notes = append(s.notes, e.Message)
	s.mu.Unlock()
	if err := s.countNow(count); err != nil {
		s.o.Warn(err.Error())
	}
	s.record(audit.TypeLimit, e) //nolint:errcheck // it is refused in any case, and the log says that something is missing
	if s.denials != nil {
		s.denials.log.Add(denials.Denial{Time: e.At, Kind: denials.Limit, What: string(e.Reason), Answer: answer, Why: e.Message, Allow: allow})
	}
}

// countNow counts something and writes it into the container's state.
func (s *Supervisor) countNow(count func(counts *container.End)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	count(&s.counts)
	now := s.end
	if now == nil {
		now = &container.End{At: time.Now().UTC()}
	}
	s.countInto(now)
	return s.c.WriteEnd(now)
}

// countInto puts what was counted into an end; it needs the lock.
func (s *Supervisor) countInto(e *container.End) {
	e.OOMKills, e.PIDsRefused = s.counts.OOMKills, s.counts.PIDsRefused
	e.OutputsCut, e.LayersFull, e.EgressCut = s.counts.OutputsCut, s.counts.LayersFull, s.counts.EgressCut
}

// counted reports whether any limit was met that has a counter.
func counted(e *container.End) bool {
	return e.OOMKills > 0 || e.PIDsRefused > 0 || e.OutputsCut > 0 || e.LayersFull > 0 || e.EgressCut > 0
}

// bounded is a workspace whose layers have a limit.
type bounded struct {
	destination string
	quota       layer.Quota
	full        bool
}

// watchLayers finds the workspaces whose layers have a limit, and looks after them.
func (s *Supervisor) watchLayers() {
	store := s.c.State().Layers
	if store == "" {
		return
	}
	l, err := layer.OpenRecent(store, s.c.ID())
	if err != nil {
		s.o.Warn(fmt.Sprintf("watch layers: %v", err))
		return
	}
	defer l.Close()
	var list []*bounded
	for i := range l.Workspaces {
		if w := &l.Workspaces[i]; w.Quota != (layer.Quota{}) {
			list = append(list, &bounded{destination: w.Destination, quota: w.Quota})
		}
	}
	if len(list) == 0 {
		return
	}
	s.mu.Lock()
	s.bounded = list
	s.mu.Unlock()
	s.group.Go(func() {
		tick := time.NewTicker(layerPoll)
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
				s.lookAtLayers()
			}
		}
	})
}

// lookAtLayers looks through the container's own view of its workspaces, whose file system is that of the layers. Nothing
// is kept open: that would keep a layer from being taken away.
func (s *Supervisor) lookAtLayers() {
	s.layerMu.Lock()
	defer s.layerMu.Unlock()
	s.mu.Lock()
	list := s.bounded
	s.mu.Unlock()
	if len(list) == 0 {
		return
	}
	root, err := os.OpenFile("/proc/"+strconv.Itoa(s.c.State().InitPID)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // it has ended
	}
	defer root.Close()
	if gone(s.init) {
		return // another process's
	}
	for _, b := range list {
		f, err := safepath.OpenInRoot(root, b.destination, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
		if err != nil {
			continue
		}
		var fs unix.Statfs_t
		err = unix.Fstatfs(int(f.Fd()), &fs)
		f.Close()
		if err == nil {
			s.layerRoom(b, &fs)
		}
	}
}

// lookOnceMore looks when the first process has ended, and its view of the workspaces with it.
func (s *Supervisor) lookOnceMore() {
	s.layerMu.Lock()
	defer s.layerMu.Unlock()
	s.mu.Lock()
	list := s.bounded
	s.mu.Unlock()
	if len(list) == 0 {
		return
	}
	l, err := layer.OpenRecent(s.c.State().Layers, s.c.ID())
	if err != nil {
		s.o.Warn(fmt.Sprintf("watch layers: %v", err))
		return
	}
	defer l.Close()
	for _, b := range list {
		fs, err := l.Room(b.destination)
		if err != nil {
			s.o.Warn(fmt.Sprintf("watch layers: %v", err))
			continue
		}
		s.layerRoom(b, &fs)
	}
}

// noteDropped notes a commit for which there was no room: what the exec wrote is gone, so nobody sees a full file system.
func (s *Supervisor) noteDropped(tx *layer.Transaction) {
	s.layerMu.Lock()
	defer s.layerMu.Unlock()
	s.mu.Lock()
	list := s.bounded
	s.mu.Unlock()
	if !tx.Dropped || len(list) == 0 || slices.ContainsFunc(list, func(b *bounded) bool { return b.full }) {
		return
	}
	s.layersFull(list[0].destination, list[0].quota)
}

// layerRoom judges what a workspace's layers have left. ext4 refuses a write when the last few blocks are left, which it
// may need for its own trees; the smallest quota has 256.
func (s *Supervisor) layerRoom(b *bounded, fs *unix.Statfs_t) {
	const lastBlocks = 8
	full := fs.Bavail <= lastBlocks || fs.Files > 0 && fs.Ffree == 0
	if full && !b.full {
		s.layersFull(b.destination, b.quota)
	}
	b.full = full
}

func (s *Supervisor) layersFull(destination string, q layer.Quota) {
	most := fmt.Sprintf("%d bytes", q.Bytes)
	switch {
	case q.Bytes == 0:
		most = fmt.Sprintf("%d files", q.Inodes)
	case q.Inodes > 0:
		most += fmt.Sprintf(" and %d files", q.Inodes)
	}
	e := container.End{
		Reason:  container.EndLayers,
		Message: fmt.Sprintf("has filled the layers of %s: %s are allowed (limits.layerBytes, layerInodes or workspace.quota of profile %q)", destination, most, s.limits.Profile),
	}
	s.met(e, "ENOSPC", "limits: {layerBytes: ...}", func(c *container.End) { c.LayersFull++ })
}

// gatewayLimit takes a line of the gateway's over that says that bytes are used up.
func (s *Supervisor) gatewayLimit(line []byte) {
	var e struct {
		Event  string `json:"event"`
		Rule   string `json:"rule"`
		Reason string `json:"reason"`
	}
	if json.Unmarshal(line, &e) != nil || e.Event != "limit" || e.Rule != "limits.egressBytes" && e.Rule != "limits.ingressBytes" {
		return
	}
	end := container.End{Reason: container.EndEgress, Message: fmt.Sprintf("has met a limit of profile %q: %s", s.limits.Profile, e.Reason)}
	s.met(end, "a reset", e.Rule+" in the profile", func(c *container.End) { c.EgressCut++ })
}
