package launch

import (
	"strings"
	"testing"
)

func TestGroupOf(t *testing.T) {
	for _, tc := range []struct{ name, config, want, err string }{
		{name: "none", config: `{"annotations": {"a": "b"}}`, want: "id"},
		{name: "sandbox", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}`, want: "pod"},
		{name: "first counts", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "io.containerd.runc.v2.group": "g"}}`, want: "g"},
		{name: "only mentioned", config: `{"process": {"args": ["io.kubernetes.cri.sandbox-id"]}}`, want: "id"},
		{name: "empty", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": ""}}`, want: "id"},
		{name: "huge (CVE-2026-47262)", config: `{"annotations": {"io.kubernetes.cri.sandbox-id": "` + strings.Repeat("x", 2000) + `"}}`, err: "2000 bytes"},
		{name: "damaged", config: `{"io.kubernetes.cri.sandbox-id`, err: "config.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := groupOf([]byte(tc.config), "id")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
