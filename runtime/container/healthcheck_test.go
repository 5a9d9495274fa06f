package container

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/agentsafe/agentsafe/profiles"
)

const dockerID = "4f5e"

// TestHealthCheck reads what Docker keeps of a container, and nothing that somebody else could have written.
func TestHealthCheck(t *testing.T) {
	for _, c := range []struct {
		name, config string
		spoil        func(t *testing.T, dir string)
		bundle       string
		want         []string
	}{
		{name: "of a shell", config: `{"ID": "4f5e", "Config": {"Healthcheck": {"Test": ["CMD-SHELL", "test -e /x"]}}}`, want: []string{"/bin/sh", "-c", "test -e /x"}},
		{name: "of the image's shell", config: `{"ID": "4f5e", "Config": {"Shell": ["/bin/bash", "-ec"], "Healthcheck": {"Test": ["CMD-SHELL", "x"]}}}`, want: []string{"/bin/bash", "-ec", "x"}},
		{name: "a program", config: `{"ID": "4f5e", "Config": {"Healthcheck": {"Test": ["CMD", "probe", "-q"]}}}`, want: []string{"probe", "-q"}},
		{name: "switched off", config: `{"ID": "4f5e", "Config": {"Healthcheck": {"Test": ["NONE"]}}}`},
		{name: "none", config: `{"ID": "4f5e", "Config": {}}`},
		{name: "of another container", config: `{"ID": "beef", "Config": {"Healthcheck": {"Test": ["CMD", "probe"]}}}`},
		{name: "no JSON", config: `{`},
		{name: "of another engine", bundle: "k8s.io", config: `{"ID": "4f5e", "Config": {"Healthcheck": {"Test": ["CMD", "probe"]}}}`},
		{
			name: "writable by others", config: `{"ID": "4f5e", "Config": {"Healthcheck": {"Test": ["CMD", "probe"]}}}`,
			spoil: func(t *testing.T, dir string) {
				t.Helper()
				must(t, os.Chmod(filepath.Join(dir, "config.v2.json"), 0o666))
			},
		},
		{
			name: "a link", config: `{"ID": "4f5e", "Config": {"Healthcheck": {"Test": ["CMD", "probe"]}}}`,
			spoil: func(t *testing.T, dir string) {
				t.Helper()
				must(t, os.Rename(filepath.Join(dir, "config.v2.json"), filepath.Join(dir, "other")))
				must(t, os.Symlink("other", filepath.Join(dir, "config.v2.json")))
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := t.TempDir()
			own := filepath.Join(base, "containers", dockerID)
			must(t, os.MkdirAll(own, 0o700))
			must(t, os.WriteFile(filepath.Join(own, "config.v2.json"), []byte(c.config), 0o600))
			if c.spoil != nil {
				c.spoil(t, own)
			}
			bundle := filepath.Join(base, "moby", dockerID)
			if c.bundle != "" {
				bundle = filepath.Join(base, c.bundle, dockerID)
			}
			must(t, os.MkdirAll(bundle, 0o700))
			f, err := os.Open(bundle)
			must(t, err)
			defer f.Close()
			// The network is another container's, and so are its files.
			cr := &creation{bundle: f, o: &CreateOptions{ID: dockerID}, spec: &specs.Spec{Mounts: []specs.Mount{
				{Destination: "/job", Source: filepath.Join(own, "hosts")},
				{Destination: "/etc/hosts", Source: filepath.Join(base, "containers/0a0b/hosts")},
			}}}
			if got := cr.healthCheck(); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestOnBase(t *testing.T) {
	p := &profiles.Profile{Exec: profiles.Exec{Transaction: "auto", Base: []string{"cat /tmp/healthy"}}}
	d := &Detail{HealthCheck: []string{"sh", "-c", "probe it"}, Policy: &Policy{Profile: p}}
	for args, want := range map[*[]string]bool{
		{"sh", "-c", "probe it"}:    true,
		{"sh", "-c", "probe", "it"}: false,
		{"cat", "/tmp/healthy"}:     true,
		{"cat", "/tmp/other"}:       false,
		{"cat"}:                     false,
	} {
		if got := d.onBase(&specs.Process{Args: *args}); got != want {
			t.Errorf("%q on the base: %v", *args, got)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
