package shim

import (
	"context"
	"sync"
	"time"

	events "github.com/containerd/containerd/api/events"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/stdio"
)

// Topics of the events. Source: containerd, core/runtime/events.go.
const (
	topicCreate      = "/tasks/create"
	topicStart       = "/tasks/start"
	topicOOM         = "/tasks/oom"
	topicExit        = "/tasks/exit"
	topicDelete      = "/tasks/delete"
	topicExecAdded   = "/tasks/exec-added"
	topicExecStarted = "/tasks/exec-started"
	topicPaused      = "/tasks/paused"
	topicResumed     = "/tasks/resumed"
)

// Task is one container with its processes.
type Task struct {
	id, bundle string
	service    *Service
	rt         *container.Runtime
	rootfs     string // a mounted snapshot; "" if the engine mounts
	ioUID      int
	ioGID      int
	ownPID     bool // has a pid namespace of its own
	restored   bool // of a checkpoint: frozen until it is started
	stopOOM    context.CancelFunc
	oom        chan struct{} // closed when no OOM event will come any more

	// verbs serialises what changes the container's state: start, update, pause, resume, delete. Execs and questions
	// share it.
	verbs sync.RWMutex
	c     *container.Container
	init  *process

	mu     sync.Mutex
	execs  map[string]*process
	paused bool
	ooms   uint64 // events sent
	// running are the exec'd processes whose exit has not been reported. Once stopped is set no more are started.
	running sync.WaitGroup
	stopped bool
}

// phase is how far a process has come.
type phase int

const (
	phaseCreated  phase = iota // reserved; the first process of a task exists and waits
	phaseStarting              // an exec that is being started
	phaseRunning
	phaseStopped
	phaseDeleted
)

// process is one process of a task, the first one or an exec.
type process struct {
	task   *Task
	execID string // "" is the first process
	at     stdio.Addresses

	spec *specs.Process // of an exec
	done chan struct{}  // closed when the exit has been reported

	// starting is held from before the start of a process until its event is queued: the exit must not overtake it.
	starting sync.Mutex

	mu          sync.Mutex
	phase       phase
	proc        *container.Process
	streams     *stdio.Streams
	stdinClosed bool // before there were streams
	pid         int
	status      int
	exitedAt    time.Time
}

func (p *process) pid32() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint32(p.pid) //nolint:gosec // pids fit
}

// id is how events name the process: the first one by the container's id.
func (p *process) id() string {
	if p.execID == "" {
		return p.task.id
	}
	return p.execID
}

// process finds a process; the empty id is the first one.
func (t *Task) process(execID string) (*process, error) {
	if execID == "" {
		return t.init, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.execs[execID]
	if p == nil {
		return nil, notFound("exec %q of container %q does not exist", execID, t.id)
	}
	return p, nil
}

func (t *Task) publish(topic string, event proto.Message) {
	t.service.cfg.Publisher.Publish(topic, event)
}

// readerTime is how long the report of an exit waits for those that should read the process's output.
const readerTime = 250 * time.Millisecond

// watch waits for the end of the process and reports it.
func (p *process) watch(proc *container.Process) {
	status, err := proc.Wait()
	if err != nil {
		p.task.service.cfg.Log.Error(p.task.id, "wait for process: "+err.Error())
		const unknown = 255
		status = unknown
	}
	exitedAt := time.Now()
	if p.execID == "" {
		p.task.initEnded()
	} else {
		defer p.task.running.Done()
	}
	p.mu.Lock()
	streams := p.streams
	p.mu.Unlock()
	if streams != nil {
		streams.AwaitReaders(readerTime)
	}
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.status, p.exitedAt = phaseStopped, status, exitedAt
	proc.Close()
	p.task.publish(topicExit, &events.TaskExit{
		ContainerID: p.task.id, ID: p.id(), Pid: uint32(p.pid), ExitStatus: uint32(status), //nolint:gosec // they fit
		ExitedAt: timestamppb.New(exitedAt),
	})
	close(p.done)
	if p.execID == "" {
		p.task.recordExit(p)
	}
}

// initEnded makes sure that the exit of the first process is the last of the task's, and comes after its OOM events.
func (t *Task) initEnded() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	if !t.ownPID {
		// With a pid namespace the kernel has killed the others.
		if err := t.c.Kill(context.Background(), unix.SIGKILL, true); err != nil {
			t.service.cfg.Log.Warn(t.id, "kill what the first process left: "+err.Error())
		}
	}
	t.running.Wait()
	t.lastOOM()
}

// admitExec registers that a process is about to be started, unless the container has ended.
func (t *Task) admitExec() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.running.Add(1)
	return true
}
