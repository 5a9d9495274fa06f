package layer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer/tree"
)

// Check is a command that has judged one state of the layers. What it wrote itself was discarded, so that the state is the
// same before and after.
type Check struct {
	Command string    `json:"command"` // as a shell reads it
	Digest  string    `json:"digest"`  // of the state
	Exit    int       `json:"exit"`
	Time    time.Time `json:"time"`
	N       int       `json:"n"` // the transaction that it ran as
}

// StateDigest hashes how the workspaces differ from the folders of the host: paths, kinds, modes, owners and contents.
func (l *Layers) StateDigest() (string, error) {
	items, err := l.Diff()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for i := range items {
		c := &items[i]
		fmt.Fprintf(h, "%q %q %s %s %o %d %d\n", c.Workspace, c.Path, c.Op, c.Kind, c.New.Mode, c.New.UID, c.New.GID)
		if c.Op == tree.Delete {
			continue
		}
		upper, closeUpper, err := l.upper(c.w, upperDir(c.w))
		if err == nil {
			err = hashFile(h, upper, c.Kind, c.Path)
			closeUpper()
		}
		if err != nil {
			return "", fmt.Errorf("hash %q: %w", c.Path, err)
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// maxChecks bounds how many checks are remembered.
const maxChecks = 100

// AddCheck remembers a check and saves the state.
func (l *Layers) AddCheck(c Check) error {
	if over := len(l.Checks) - maxChecks + 1; over > 0 {
		l.Checks = slices.Delete(l.Checks, 0, over)
	}
	l.Checks = append(l.Checks, c)
	return l.save()
}

// Passed returns the check of a command that has passed on a state; nil if none has.
func (l *Layers) Passed(command, digest string) *Check {
	for i := range slices.Backward(l.Checks) {
		if c := &l.Checks[i]; c.Command == command && c.Digest == digest {
			if c.Exit == 0 {
				return c
			}
			return nil // the last word counts
		}
	}
	return nil
}
