package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
)

// FuzzCompile: whatever description a spec's seccomp section became, compiling it ends with an error or with a program
// that ends for every call, and that answers all calls of an ABI that nobody named alike.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		`{"name":"x","arch":"amd64","badArch":{"do":"errno","errno":1},"default":{"do":"allow"}}`,
		`{"arch":"amd64","badArch":{"do":"kill-process"},"default":{"do":"errno","errno":38},"unknown":{"do":"errno","errno":38},"rules":[{"names":["read","nosuch"],"action":{"do":"allow"},"args":[{"index":0,"value":1,"op":"eq"}]}]}`,
		`{"arch":"amd64","compat":["SCMP_ARCH_X86","SCMP_ARCH_X32"],"badArch":{"do":"errno","errno":1},"default":{"do":"allow"},"refuse":[{"syscall":"ioctl","arg":1,"value":21522,"errno":1}]}`,
	} {
		f.Add([]byte(seed), uint32(0), uint64(1))
	}
	engines, err := filepath.Glob("../../profiles/testdata/*.json")
	if err != nil || len(engines) == 0 {
		f.Fatalf("no specs of engines: %v", err)
	}
	for _, name := range engines {
		data, err := os.ReadFile(name)
		var s specs.Spec
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil {
			f.Fatal(err)
		}
		if s.Linux.Seccomp == nil {
			continue
		}
		filter, err := profiles.FilterFromOCI(s.Linux.Seccomp, "amd64", true)
		if err != nil {
			f.Fatal(err)
		}
		text, err := json.Marshal(filter)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, uint32(101), uint64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, number uint32, arg uint64) {
		var filter profiles.SeccompFilter
		if json.Unmarshal(data, &filter) != nil {
			return
		}
		program, err := compile(&filter)
		if err != nil {
			return
		}
		const native, nobodys = 0xc000003e, 0xdeadbeef
		evaluate(program, call{nr: number, arch: native, args: [6]uint64{arg, arg, arg, arg, arg, arg}})
		if a, b := evaluate(program, call{nr: number, arch: nobodys}), evaluate(program, call{nr: 0, arch: nobodys}); a != b {
			t.Errorf("calls %d and 0 of an unknown ABI get %#x and %#x", number, a, b)
		}
	})
}
