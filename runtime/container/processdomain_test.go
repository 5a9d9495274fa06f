package container

import (
	"bytes"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

func TestParseBits(t *testing.T) {
	for _, tc := range []struct {
		list string
		want []byte // nil is an error
	}{
		{"0", []byte{1, 0, 0, 0, 0, 0, 0, 0}},
		{"1-3, 8", []byte{0x0e, 1, 0, 0, 0, 0, 0, 0}},
		{"63,64", []byte{0, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0}},
		{"", []byte{}},
		{"3-1", nil},
		{"-1", nil},
		{"1-", nil},
		{"0-999", nil},
		{"x", nil},
		{"99999999999999999999", nil},
	} {
		got, err := parseBits(tc.list, 128)
		if (err != nil) != (tc.want == nil) || !bytes.Equal(got, tc.want) {
			t.Errorf("parseBits(%q) = %x, %v, want %x", tc.list, got, err, tc.want)
		}
	}
}

// What SELinux is told of mounts, on machines without it as well: the label stands in the options of the file systems
// that are made, and of no others.
func TestLabelMounts(t *testing.T) {
	plan, err := rootfs.PlanMounts([]specs.Mount{
		{Destination: "/proc", Type: "proc"},
		{Destination: "/dev", Type: "tmpfs", Options: []string{"mode=755"}},
		{Destination: "/dev/pts", Type: "devpts"},
		{Destination: "/dev/mqueue", Type: "mqueue"},
		{Destination: "/sys", Type: "sysfs"},
		{Destination: "/v", Type: "bind", Source: "/x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	labelMounts(plan, make(sources, len(plan)), label)
	labelled := map[string]bool{"/dev": true, "/dev/pts": true}
	for i := range plan {
		m := &plan[i]
		has := slices.Contains(m.Options, rootfs.Option{Key: "context", Value: label})
		if has != labelled[m.Destination] {
			t.Errorf("%s: %v", m.Destination, m.Options)
		}
	}
}
