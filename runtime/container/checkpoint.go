package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
)

// ErrNoCheckpoint says that this version writes and restores no checkpoints.
var ErrNoCheckpoint = errors.New("checkpoint and restore are not supported by this version")

// Checkpoint refuses to checkpoint the container, and says why: it must run; a profile with rules can't be restored,
// because CRIU knows nothing of Landlock domains, network rules or supervisors, and a restored task would be less
// confined than it was; and without one it is CRIU's own word on this kernel that counts first. criu is its program, ""
// the one of PATH. The container is left as it is.
func (c *Container) Checkpoint(ctx context.Context, criu string) error {
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != StatusRunning && status != StatusPaused {
		return fmt.Errorf("checkpoint container %q: %w", c.id, ErrNotRunning)
	}
	d, err := c.details()
	if err != nil {
		return err
	}
	if !d.Policy.Profile.Unrestricted {
		return &profiles.RefusedError{
			What:  "checkpoint",
			Rule:  fmt.Sprintf("profile %q: a restored task would not be under its Landlock, network and time rules, which CRIU can't restore", d.Policy.Profile.Name),
			Allow: "no profile with rules; layers and their checkpoints (agentsafectl) keep what a task has written",
		}
	}
	if criu == "" {
		criu = "criu"
	}
	out, err := exec.CommandContext(ctx, criu, "check").CombinedOutput()
	if err != nil {
		return fmt.Errorf("checkpoint container %q: %s check: %w%s", c.id, criu, err, lastLine(out))
	}
	return fmt.Errorf("checkpoint container %q: %w; the container was left as it is", c.id, ErrNoCheckpoint)
}

// lastLine is what a program has said last, as the end of an error.
func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if last := strings.TrimSpace(string(lines[len(lines)-1])); last != "" {
		return ": " + last
	}
	return ""
}
