package container

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/entry"
)

// RecordingsDir holds what was recorded of containers whose administrator allowed it, one file for each name.
const RecordingsDir = "/var/lib/agentsafe/recordings"

// The recorder is a command of agentsafectl: it parses what tasks hand it, which no program of the start path does.
const (
	recorderProgram = "agentsafectl"
	RecorderCommand = "record-attach"
	// RecorderReady is the recorder's answer; anything else is its complaint.
	RecorderReady = "ready"
)

const recordKey = "record"

// Recording says where it is written down what a container's processes do: [profiles.RecordFilter] stops them, and a
// recorder looks. It refuses nothing and allows nothing.
type Recording struct {
	// File is what is added to.
	File string `json:"file"`
	// Name is what the recording was asked for by; "" for a caller's own file.
	Name string `json:"name,omitempty"`
	// Home and Workspace are what $HOME and $WORKSPACE are in the container, "" for nothing.
	Home      string `json:"home,omitempty"`
	Workspace string `json:"workspace,omitempty"`
}

// RecordRequest is what a recorder reads from its standard input.
type RecordRequest struct {
	PID       int       `json:"pid"`
	Recording Recording `json:"recording"`
	Command   []string  `json:"command"`
}

// HostRecord is what the administrator says of recordings.
type HostRecord struct {
	// Names are the recordings that an annotation may ask for.
	Names []string `json:"names,omitempty"`
}

// checkRecordingName makes sure that a name is one of a file.
func checkRecordingName(name string) error {
	if name == "" || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("%q is not a name: lower-case letters, digits and hyphens, at most 63", name)
	}
	return nil
}

// recording resolves what is asked for by the annotation and what the handler says, "" for nothing.
func (c *HostConfig) recording(handler string, ask *profiles.Request, configDir string) (string, error) {
	if ask != nil {
		if err := checkRecordingName(ask.Value); err != nil {
			return "", fmt.Errorf("%s: %w", ask.Source, err)
		}
		if !slices.Contains(c.Record.Names, ask.Value) {
			return "", &profiles.RefusedError{
				What: ask.Source + "=" + ask.Value, Rule: "the administrator has not released a recording of this name",
				Allow: fmt.Sprintf("`names = [%q]` below [record] in %s", ask.Value, filepath.Join(configDir, ConfigSource)),
			}
		}
		return ask.Value, nil
	}
	if handler != "" {
		for _, h := range c.Handlers {
			if h.Name == handler {
				return h.Record, nil
			}
		}
	}
	return "", nil
}

// record adds the filter of a recording to a policy, whose hash it does not change: what the task may do stays the same.
func (cr *creation) record(name string, plan *profiles.Plan) *Recording {
	rec := cr.o.Record
	if rec == nil && name == "" {
		return nil
	}
	if rec == nil {
		dir := cr.rt.opts.RecordingsDir
		if dir == "" {
			dir = RecordingsDir
		}
		rec = &Recording{Name: name, File: filepath.Join(dir, name+".json")}
	}
	out := *rec
	out.Home, out.Workspace = profiles.ExpandVariables(cr.spec).Values()
	plan.AddFilter(profiles.RecordFilter(runtime.GOARCH))
	return &out
}

// watch starts a recorder of a process that has not executed anything of the container's yet, and returns when that is
// traced. A container that is not recorded has none.
func (c *Container) watch(rec *Recording, pid int, process *specs.Process) error {
	if rec == nil {
		return nil
	}
	request, err := json.Marshal(&RecordRequest{PID: pid, Recording: *rec, Command: process.Args})
	if err != nil {
		return err
	}
	in, err := memoryFile("record-request", request)
	if err != nil {
		return err
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start recorder: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(c.rt.recorderPath(), RecorderCommand) //nolint:noctx // it lives as long as the container
	// Nothing of the caller's is kept, so that it holds no pipe of an engine's open; a signal to the terminal is not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout = []string{"GOMAXPROCS=2", "GOGC=50"}, "/", in, w
	err = entry.Children(cmd.Start)
	w.Close()
	if err != nil {
		return fmt.Errorf("start recorder: %w", err)
	}
	r.SetReadDeadline(time.Now().Add(launchTimeout)) //nolint:errcheck // a pipe has deadlines
	answer, _ := bufio.NewReader(r).ReadString('\n')
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait() //nolint:errcheck // a creator that stays must not keep a zombie
	}()
	if answer = strings.TrimSpace(answer); answer != RecorderReady {
		cmd.Process.Kill() //nolint:errcheck // it may hang, or be gone
		<-done
		if answer == "" {
			answer = "it ended"
		}
		return fmt.Errorf("record process %d: %s", pid, answer)
	}
	c.recorders = append(c.recorders, done)
	return nil
}

// AwaitRecorders returns when the recorders that this process has started have written down what they saw, which is
// after the end of what they watched.
func (c *Container) AwaitRecorders() {
	for _, done := range c.recorders {
		<-done
	}
}

// recorderPath finds the program beside this one.
func (r *Runtime) recorderPath() string {
	if r.opts.Recorder != "" {
		return r.opts.Recorder
	}
	self, err := os.Executable()
	if err != nil {
		return recorderProgram
	}
	return filepath.Join(filepath.Dir(self), recorderProgram)
}
