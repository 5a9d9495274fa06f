package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/cgroup"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// running is a process that an engine has started in the container, until its end has been told.
type running struct {
	wire.Exec
	pidfd   *os.File
	branch  *cgroup.Branch // nil if its descendants are not told from others
	started time.Time
	// report is closed when the parent has told the status.
	report   chan struct{}
	parent   parentReport
	timer    *time.Timer
	timedOut bool
	done     chan struct{} // closed when the end has been told
	streams  *streams      // nil if they are not counted
}

// Exec implements container.Supervisor: a process has joined.
func (s *Supervisor) Exec(e *wire.Exec, pidfd *os.File) error {
	own, err := unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("supervise exec: %w", err)
	}
	r := &running{
		Exec: *e, pidfd: os.NewFile(uintptr(own), "pidfd"), started: time.Now(),
		report: make(chan struct{}), done: make(chan struct{}),
	}
	if e.TransactionN > 0 {
		if err := s.c.Transacting(e.TransactionN, e.PID); err != nil {
			r.pidfd.Close()
			return err
		}
	}
	branch := ""
	if e.Cgroup != "" {
		if r.branch, err = cgroup.OpenBranch(e.Cgroup); err != nil {
			r.pidfd.Close()
			return err
		}
		branch = filepath.Base(e.Cgroup)
		s.denials.begins(branch)
	}
	err = s.record(audit.TypeExec, &execRecord{
		ID: e.ID, Branch: branch, PID: e.PID, Argv: audit.Redact(e.Args), EnvNames: e.EnvNames, Cwd: e.Cwd, UID: e.UID, GID: e.GID,
		Terminal: e.Terminal, Transaction: e.Transaction,
	})
	if err != nil {
		r.pidfd.Close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closes {
		r.pidfd.Close()
		return errClosing
	}
	s.execCount++
	s.execs[e.PID] = r
	if e.WallClock > 0 {
		r.timer = time.AfterFunc(e.WallClock, func() { s.expireExec(r) })
	}
	s.group.Go(func() { s.watchExec(r) })
	return nil
}

// execRecord is the data of a record about a process.
type execRecord struct {
	ID string `json:"id,omitempty"`
	// Branch is the name of its cgroup below the container's, by which the gateway's lines name it.
	Branch      string   `json:"branch,omitempty"`
	PID         int      `json:"pid"`
	Argv        []string `json:"argv"`
	EnvNames    []string `json:"envNames,omitempty"`
	Cwd         string   `json:"cwd,omitempty"`
	UID         uint32   `json:"uid"`
	GID         uint32   `json:"gid"`
	Terminal    bool     `json:"terminal,omitempty"`
	Transaction string   `json:"transaction,omitempty"`
}

// expireExec ends one exec with all its descendants.
func (s *Supervisor) expireExec(r *running) {
	s.mu.Lock()
	r.timedOut = true
	s.mu.Unlock()
	if r.branch == nil {
		return // Exec gives every process with a limit a branch
	}
	if err := r.branch.Signal(unix.SIGTERM); err != nil {
		s.o.Warn(fmt.Sprintf("end exec %s: %v", r.ID, err))
	}
	for until := time.Now().Add(Grace); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if pids, err := r.branch.PIDs(); err == nil && len(pids) == 0 {
			break
		}
	}
	if err := r.branch.Kill(context.Background()); err != nil {
		s.o.Warn(fmt.Sprintf("end exec %s: %v", r.ID, err))
	}
	r.branch.Remove() //nolint:errcheck // the container's end takes it along
}

// reportTimeout is how long the report of a parent is waited for once its child has ended.
const reportTimeout = 5 * time.Second

// watchExec waits for the end of a process and tells it.
func (s *Supervisor) watchExec(r *running) {
	defer r.pidfd.Close()
	if !waitExit(s.ctx, r.pidfd, r.PID, 0) {
		close(r.done)
		return
	}
	var status int
	if r.ParentReports {
		select {
		case <-r.report:
			status = r.parent.status
		case <-time.After(reportTimeout):
			status = exitStatus(s.ctx, r.pidfd)
		}
	} else {
		status = exitStatus(s.ctx, r.pidfd)
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.streams.drain(s.ctx)
	s.lookAtLayers()
	s.mu.Lock()
	exit := ExecExit{Exec: r.Exec, Status: status, Started: r.started, Ended: time.Now(), TimedOut: r.timedOut}
	callbacks := s.onExec
	delete(s.execs, r.PID)
	s.mu.Unlock()
	s.record(audit.TypeExecExit, map[string]any{ //nolint:errcheck // it has ended, and the log says that something is missing
		"id": r.ID, "pid": r.PID, "status": status, "timedOut": exit.TimedOut, "millis": exit.Ended.Sub(r.started).Milliseconds(),
	})
	for _, f := range callbacks {
		f(&exit)
	}
	if r.branch != nil && !exit.TimedOut {
		// What it left behind stays until the container ends.
		r.branch.Remove() //nolint:errcheck // busy, then
	}
	close(r.done)
}

// Exited implements container.Supervisor. It returns when everybody has been told.
func (s *Supervisor) Exited(pid, status int) (timedOut bool) {
	s.mu.Lock()
	r := s.execs[pid]
	if r == nil {
		if pid == s.c.State().InitPID {
			s.parent = parentReport{status, true}
			defer s.settled.Do(s.settle)
		}
		s.mu.Unlock()
		return false
	}
	first := !r.parent.known
	r.parent = parentReport{status, true}
	s.mu.Unlock()
	if first {
		close(r.report)
	}
	<-r.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.timedOut
}
