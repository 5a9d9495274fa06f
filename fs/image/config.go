package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxConfigStrings and maxConfigBytes bound Env, Entrypoint and Cmd, each. The
// kernel's own limit for all of argv and envp is a quarter of the stack limit.
const (
	maxConfigStrings = 4096
	maxConfigBytes   = 1 << 20
)

// Config is what an image may say about how it wants to be started. User is
// still text: LookupUser resolves it against the image's own files.
type Config struct {
	Env        []string
	Entrypoint []string
	Cmd        []string
	User       string
	WorkingDir string // absolute and clean; "/" if the image has none
}

// Args returns the command line: the caller's command after the image's entry
// point, or the image's default command. Source: image-spec config.md, Cmd.
func (c Config) Args(command []string) []string {
	if len(command) == 0 {
		command = c.Cmd
	}
	return append(append([]string{}, c.Entrypoint...), command...)
}

// parseConfig reads an image configuration and returns it with the diff ids of
// the layers.
func parseConfig(data []byte, want Platform) (Config, []digest.Digest, error) {
	var img v1.Image
	if err := json.Unmarshal(data, &img); err != nil {
		return Config{}, nil, fmt.Errorf("parse: %w", err)
	}
	if img.OS != want.OS || img.Architecture != want.Architecture {
		return Config{}, nil, fmt.Errorf("built for %q/%q, this host is %s/%s", img.OS, img.Architecture, want.OS, want.Architecture)
	}
	if img.RootFS.Type != "layers" {
		return Config{}, nil, fmt.Errorf("rootfs.type: %q, not \"layers\"", img.RootFS.Type)
	}
	for i, d := range img.RootFS.DiffIDs {
		if _, err := blobName(d); err != nil {
			return Config{}, nil, fmt.Errorf("rootfs.diff_ids[%d]: %w", i, err)
		}
	}
	c := Config{
		Env: img.Config.Env, Entrypoint: img.Config.Entrypoint, Cmd: img.Config.Cmd,
		User: img.Config.User, WorkingDir: img.Config.WorkingDir,
	}
	if err := c.validate(); err != nil {
		return Config{}, nil, err
	}
	c.WorkingDir = path.Clean("/" + c.WorkingDir)
	return c, img.RootFS.DiffIDs, nil
}

func (c Config) validate() error {
	lists := []struct {
		field string
		list  []string
	}{{"Env", c.Env}, {"Entrypoint", c.Entrypoint}, {"Cmd", c.Cmd}, {"User", []string{c.User}}, {"WorkingDir", []string{c.WorkingDir}}}
	for _, l := range lists {
		if err := validateStrings(l.list); err != nil {
			return fmt.Errorf("config.%s: %w", l.field, err)
		}
	}
	for i, kv := range c.Env {
		if key, _, ok := strings.Cut(kv, "="); !ok || key == "" {
			return fmt.Errorf("config.Env[%d]: not NAME=VALUE", i)
		}
	}
	if len(c.WorkingDir) >= 4096 {
		return errors.New("config.WorkingDir: longer than a path may be")
	}
	return nil
}

func validateStrings(list []string) error {
	if len(list) > maxConfigStrings {
		return &LimitError{What: "strings", Limit: maxConfigStrings}
	}
	total := 0
	for _, s := range list {
		if strings.ContainsRune(s, 0) {
			return errors.New("NUL byte")
		}
		total += len(s) + 1
	}
	if total > maxConfigBytes {
		return &LimitError{What: "bytes", Limit: maxConfigBytes}
	}
	return nil
}
