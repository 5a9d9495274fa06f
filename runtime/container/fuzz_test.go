package container

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/initproc"
)

// FuzzProcess: whatever an exec's process.json holds, it ends with an error or with a program for the child, which is
// within the profile.
func FuzzProcess(f *testing.F) {
	for _, seed := range []string{
		`{"args":["sh"],"cwd":"/"}`,
		`{"args":["a/b"],"cwd":"/x","env":["PATH=:/bin","A"],"user":{"uid":4294967295,"additionalGids":[0]},"terminal":true,"consoleSize":{"height":1,"width":70000}}`,
		`{"args":["x"],"cwd":"/","capabilities":{"bounding":["CAP_SYS_ADMIN"],"ambient":["CAP_KILL"]},"rlimits":[{"type":"RLIMIT_NOFILE","hard":1,"soft":2}]}`,
		`{"args":["x"],"cwd":"/","scheduler":{"policy":"SCHED_RR","priority":5,"flags":["SCHED_FLAG_X"]},"ioPriority":{"class":"IOPRIO_CLASS_RT","priority":9},"execCPUAffinity":{"initial":"0-9999999","final":"1,"}}`,
		`{"args":[""],"cwd":"x","selinuxLabel":"\u0000","apparmorProfile":"\n"}`,
	} {
		f.Add([]byte(seed))
	}
	for _, spec := range engineSpecs(f) {
		var s struct {
			Process json.RawMessage `json:"process"`
		}
		if err := json.Unmarshal(spec, &s); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(s.Process))
	}
	root := openTemp(f)
	agent, err := profiles.Builtin(profiles.NameAgent)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p specs.Process
		if DecodeJSON(data, "process", &p) != nil || validateProcess(&p) != nil {
			return
		}
		hardened, _, err := profiles.PlanExec(&p, agent)
		if err != nil {
			return
		}
		if !hardened.NoNewPrivileges {
			t.Fatal("no_new_privs is off")
		}
		plan, err := planProcess(hardened, root)
		if err != nil {
			return
		}
		planAffinity(hardened.ExecCPUAffinity, &plan) //nolint:errcheck // must not crash
		program := initproc.PlanExec(&initproc.Exec{Process: plan})
		if text := program.String(); !strings.Contains(text, "exec ") {
			t.Fatalf("nothing is executed:\n%s", text)
		}
	})
}

// FuzzState: a state.json that a crash or a full disk has damaged is an error or a container whose state can be asked.
func FuzzState(f *testing.F) {
	good, err := json.Marshal(&State{Version: stateVersion, ID: "c", InitPID: 1, Cgroup: CgroupPaths{Driver: "cgroupfs", Paths: map[string]string{"": "/sys/fs/cgroup/x"}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(good), string(good[:len(good)/2]), `null`, `{}`, `{"version":1}`, `{"version":1,"initPid":-1,"cgroup":{"driver":"x","paths":{"a":"../.."}}}`,
		`{"version":1,"initPid":9223372036854775807,"initStart":18446744073709551615,"hostMounts":true,"rootfs":"/"}`,
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	rt, err := Open(Options{Root: dir})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(rt.Close)
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, "c", stateFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := rt.Load("c")
		if err != nil {
			if !strings.Contains(err.Error(), "delete --force") {
				t.Fatalf("the error does not say what to do: %v", err)
			}
			return
		}
		defer c.Close()
		if status, err := c.Status(); err == nil {
			c.ociState(status)
		}
	})
}

// engineSpecs are what engines have written: Docker, containerd, Podman, runc.
func engineSpecs(f *testing.F) [][]byte {
	f.Helper()
	names, err := filepath.Glob("../../profiles/testdata/*.json")
	if err != nil || len(names) == 0 {
		f.Fatalf("no specs of engines: %v", err)
	}
	var out [][]byte
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, data)
	}
	return out
}
