package supervise

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// EvidenceDir is where the logs of all containers lie: one directory for each id, in it one for each container that had
// the id, by the time of its creation.
const EvidenceDir = "/var/lib/agentsafe/evidence"

// LogTime is how a container's log is named, so that names sort by time.
const LogTime = "20060102T150405.000000000Z"

// LogDir is where the log of a container is.
func LogDir(dir, id string, created time.Time) string {
	return filepath.Join(dir, id, created.UTC().Format(LogTime))
}

// evidence is the log of a container; nil keeps none.
type evidence struct {
	log       *audit.Writer
	dir       string
	stop      bool // a record that can't be written ends the container
	predicate audit.Predicate
	keyDir    string
}

// startEvidence begins the log if the profile wants one.
func (s *Supervisor) startEvidence() error {
	d, err := s.c.Detail()
	if err != nil {
		return err
	}
	p := d.Policy.Profile
	if p.Unrestricted || p.Evidence.Mode != "on" {
		return nil
	}
	dir, keyDir := s.o.dirs()
	state := s.c.State()
	e := &evidence{stop: p.Evidence.OnFull != "gap", keyDir: keyDir}
	e.dir = LogDir(dir, s.c.ID(), state.Created)
	e.log, err = audit.Open(e.dir, audit.Options{Failed: s.evidenceFailed})
	if err != nil {
		return fmt.Errorf("evidence of container %q: %w", s.c.ID(), err)
	}
	s.evidence = e
	about := describe(s.c.ID(), state.Created, state.Bundle, state.Annotations, p.Name)
	about.PolicyHash = state.PolicyHash
	e.predicate = audit.Predicate{Container: about, Runtime: s.o.Version}
	create := createRecord{
		Container: e.predicate.Container, Argv: audit.Redact(d.Process.Args), EnvNames: envNames(d.Process.Env),
		Cwd: d.Process.Cwd, UID: d.Process.User.UID, GID: d.Process.User.GID, Terminal: d.Process.Terminal,
		Limits: p.Limits, Runtime: s.o.Version, Policy: withoutValues(p),
	}
	if err := s.record(audit.TypeCreate, create); err != nil {
		return err
	}
	for _, n := range d.Policy.Notes {
		if n.Routine {
			continue
		}
		if err := s.record(audit.TypeDenial, map[string]string{"rule": n.Rule, "text": n.Text}); err != nil {
			return err
		}
	}
	return nil
}

// createRecord is the data of the first record.
type createRecord struct {
	audit.Container
	Argv     []string        `json:"argv"`
	EnvNames []string        `json:"envNames"`
	Cwd      string          `json:"cwd"`
	UID      uint32          `json:"uid"`
	GID      uint32          `json:"gid"`
	Terminal bool            `json:"terminal,omitempty"`
	Limits   profiles.Limits `json:"limits"`
	Runtime  string          `json:"runtime"`
	// Policy is the whole profile, without the values of variables.
	Policy *profiles.Profile `json:"policy"`
}

// startRecord is the data of the record that comes before the program runs.
type startRecord struct {
	Inputs []audit.Input `json:"inputs,omitempty"`
}

// withoutValues is a profile with the values of the variables that it sets, and secrets in commands, left out.
func withoutValues(p *profiles.Profile) *profiles.Profile {
	out := *p
	if len(p.Environment.Set) > 0 {
		out.Environment.Set = map[string]string{}
		for name := range p.Environment.Set {
			out.Environment.Set[name] = ""
		}
	}
	out.Network.Credentials = slices.Clone(p.Network.Credentials)
	for i := range out.Network.Credentials {
		c := &out.Network.Credentials[i]
		c.Command = audit.Redact(c.Command)
	}
	return &out
}

// describe says what is known of a container by its bundle and annotations. a may be nil.
func describe(id string, created time.Time, bundle string, a map[string]string, profile string) audit.Container {
	out := audit.Container{
		ID: id, Created: created, Engine: engineOf(bundle, a), SpecHash: specHash(bundle), Profile: profile,
		Owner: a[profiles.AnnotationPrefix+"owner"], Task: a[profiles.AnnotationPrefix+"task"],
		TraceParent: a[profiles.AnnotationPrefix+"traceparent"],
	}
	for _, key := range [...]string{"io.kubernetes.cri.image-name", "org.opencontainers.image.ref.name", "agentsafe.dev.image"} {
		if out.Image = a[key]; out.Image != "" {
			break
		}
	}
	if _, digest, ok := strings.Cut(out.Image, "@"); ok {
		out.ImageDigest = digest
	}
	return out
}

// engineOf tells the engine by where it keeps bundles and by its annotations; "" if it is none that we know.
func engineOf(bundle string, annotations map[string]string) string {
	switch {
	case annotations["io.kubernetes.cri.container-type"] != "":
		return "kubernetes-cri"
	case strings.Contains(bundle, "/io.containerd.runtime.v2.task/moby/"):
		return "docker"
	case strings.Contains(bundle, "/io.containerd.runtime.v2.task/"):
		return "containerd"
	case strings.Contains(bundle, "/overlay-containers/"), strings.Contains(bundle, "/vfs-containers/"):
		return "podman"
	case strings.Contains(bundle, "/agentsafectl/"):
		return "agentsafectl"
	}
	return ""
}

// specHash is the sha256 of config.json as the engine wrote it; "" if there is none.
func specHash(bundle string) string {
	f, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return ""
	}
	defer f.Close()
	const maxSpecBytes = 16 << 20
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(f, maxSpecBytes)); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func envNames(env []string) []string {
	out := make([]string, len(env))
	for i, e := range env {
		out[i], _, _ = strings.Cut(e, "=")
	}
	return out
}

// Record writes a line into the evidence, if the profile wants one. Other packages' plug-ins call it. The error means
// that what is recorded must not happen: the profile says stop.
func (s *Supervisor) Record(kind string, data any) error { return s.record(kind, data) }

func (s *Supervisor) record(kind string, data any) error {
	if s.evidence == nil {
		return nil
	}
	err := s.evidence.log.Append(kind, data)
	if err == nil {
		return nil
	}
	s.evidenceFailed(err)
	if s.evidence.stop {
		return fmt.Errorf("evidence of container %q: %w", s.c.ID(), err)
	}
	return nil
}

func (s *Supervisor) evidenceFailed(err error) {
	s.o.Warn("evidence: " + err.Error())
	if s.evidence.stop {
		s.expire(container.End{
			Reason:  container.EndEvidence,
			Message: fmt.Sprintf("was ended because its evidence can't be written (evidence.onFull: stop): %v", err),
		})
	}
}

// requested writes a record that another program asks for, of the types that others know more about.
func (s *Supervisor) requested(r *wire.Record) error {
	switch r.Type {
	case audit.TypeEgress, audit.TypeTransaction, audit.TypePromotion, audit.TypeDenial:
		if !json.Valid(r.Data) {
			return errors.New("the record is not JSON")
		}
		return s.record(r.Type, r.Data)
	}
	return fmt.Errorf("a record of type %q is not for others to write", r.Type)
}

// recordExit is called once, when the first process has ended and the kernel's counters are known.
func (s *Supervisor) recordExit(status int) {
	s.mu.Lock()
	end, execs, begun, over := s.end, s.execCount, s.begun, s.usage
	s.mu.Unlock()
	if s.evidence == nil {
		return
	}
	data := map[string]any{"status": status, "started": begun, "execs": execs}
	r := audit.Result{ExitStatus: status, Finished: time.Now().UTC(), Execs: execs}
	if end != nil {
		data["end"], r.Reason = end, string(end.Reason)
	}
	if stats, err := s.c.Stats(); err == nil {
		data["peaks"] = map[string]uint64{
			"memoryBytes": stats.Memory.Usage.Max, "memoryLimitBytes": stats.Memory.Usage.Limit,
			"cpuNanoseconds": stats.CPU.Usage.Total, "pidsLimit": stats.Pids.Limit, "pidsPeak": s.c.PIDsPeak(),
		}
	}
	if series := over.stop(); series != nil {
		data["usage"] = series
	}
	s.evidence.predicate.Result = r
	s.recordEgress()
	s.record(audit.TypeExit, data) //nolint:errcheck // it has ended, and the log says that something is missing
}

// maxEgress bounds the gateway's decisions in one log; more are counted.
const maxEgress = 10_000

// recordEgress takes the gateway's decisions over into the log: its own goes with the container's state.
func (s *Supervisor) recordEgress() {
	s.awaitGateway()
	fd, err := unix.Openat(int(s.c.Dir().Fd()), container.NetworkLog, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return // no gateway
	}
	f := os.NewFile(uintptr(fd), container.NetworkLog)
	defer f.Close()
	const maxLine = 64 << 10
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if n > maxEgress && !bytes.Contains(lines.Bytes(), []byte(`"event":"summary"`)) || !json.Valid(lines.Bytes()) {
			continue
		}
		if s.record(audit.TypeEgress, json.RawMessage(lines.Bytes())) != nil {
			return // the log says that something is missing
		}
	}
	if n > maxEgress {
		s.record(audit.TypeEgress, map[string]int{"omitted": n - maxEgress}) //nolint:errcheck // as above
	}
}

// awaitGateway lets the gateway write what each name has had, which it does when the container has ended. One that does
// not belong to this container goes on.
func (s *Supervisor) awaitGateway() {
	const patience = 2 * time.Second
	if container.GatewayOwner(s.c.Dir()) != "" {
		return
	}
	pidfd, pid, err := s.c.Gateway()
	if err != nil {
		return
	}
	defer pidfd.Close()
	waitExit(context.Background(), pidfd, pid, patience)
}

// closeEvidence finishes the log and signs the statement. Without a key there is none, and the log says so.
func (s *Supervisor) closeEvidence() {
	e := s.evidence
	if e == nil {
		return
	}
	if err := finishLog(e.log, &e.predicate, e.keyDir); err != nil {
		s.o.Warn("evidence: " + err.Error())
	}
	if err := e.log.Close(); err != nil {
		s.o.Warn("evidence: " + err.Error())
	}
	s.sendTelemetry(e.dir)
}
