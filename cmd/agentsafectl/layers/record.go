package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/fs/layer/tree"
	"github.com/agentsafe/agentsafe/runtime/audit"
)

// promotionsLog is the name of the log in which the promotions of all containers of the host stand, beside the logs of
// the containers: `agentsafectl audit show @promotions`. No container has it: an id holds no @.
const promotionsLog = "@promotions"

// hostRecord is a line of evidence: who wrote what to the host. It stands there also where the container kept no log.
type hostRecord struct {
	// Phase is begin before anything is written, and then done or failed.
	Phase     string        `json:"phase"`
	Container string        `json:"container"`
	Created   time.Time     `json:"created"` // of the layers
	Plan      string        `json:"planDigest"`
	Layer     string        `json:"layerDigest"`
	Check     *layer.Check  `json:"check,omitempty"`
	By        *promoter     `json:"by,omitempty"`
	Paths     int           `json:"paths"`
	Items     []promoteItem `json:"items,omitempty"`
	Error     string        `json:"error,omitempty"`
}

// promoter is who asked. UID is the process's; Login is the session's, which a change of the user keeps; Sudo is what
// sudo says.
type promoter struct {
	UID     int    `json:"uid"`
	Login   *int64 `json:"loginUid,omitempty"`
	Sudo    string `json:"sudo,omitempty"`
	Command string `json:"command"`
}

type promoteItem struct {
	Path   string    `json:"path"`
	Op     tree.Op   `json:"op"`
	Kind   tree.Kind `json:"kind"`
	Merged bool      `json:"merged,omitempty"`
}

// maxRecorded bounds the paths of one line; the digest is over all.
const maxRecorded = 1000

func whoPromotes() *promoter {
	p := &promoter{UID: os.Getuid(), Sudo: os.Getenv("SUDO_USER"), Command: strings.Join(audit.Redact(os.Args), " ")}
	const unset = 1<<32 - 1
	if data, err := os.ReadFile("/proc/self/loginuid"); err == nil {
		if id, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil && id != unset {
			p.Login = &id
		}
	}
	return p
}

// recordedPromotion promotes a plan, with a record in the evidence before and after. Without the first nothing is
// written.
func (a *app) recordedPromotion(l *layer.Layers, plan *layer.PromotionPlan, check *layer.Check) error {
	digest, err := l.StateDigest()
	if err != nil {
		return err
	}
	if check != nil && check.Digest != digest {
		return fmt.Errorf("promote: nothing was written, because the workspaces have changed since the check %q", check.Command)
	}
	taken := plan.Taken()
	r := hostRecord{
		Phase: "begin", Container: l.ID, Created: l.Created, Plan: plan.Digest, Layer: digest, Check: check, By: whoPromotes(), Paths: len(taken),
	}
	for i := range taken[:min(len(taken), maxRecorded)] {
		r.Items = append(r.Items, promoteItem{taken[i].Workspace + "/" + taken[i].Path, taken[i].Op, taken[i].Kind, taken[i].Merged})
	}
	if len(taken) == 0 || len(plan.Conflicts()) > 0 {
		return l.Promote(plan) // it says why not
	}
	log, err := a.openPromotions()
	if err != nil {
		return fmt.Errorf("promote: nothing was written, because there can't be a record of it: %w", err)
	}
	defer log.Close()
	if err := log.Append(audit.TypePromotion, &r); err != nil {
		return fmt.Errorf("promote: nothing was written, because there can't be a record of it: %w", err)
	}
	err = l.Promote(plan)
	r.Phase, r.Items, r.By = "done", nil, nil
	if err != nil {
		r.Phase, r.Error = "failed", err.Error()
	}
	return errors.Join(err, log.Append(audit.TypePromotion, &r))
}

// openPromotions opens the host's log, which one process at a time writes.
func (a *app) openPromotions() (*audit.Writer, error) {
	const wait, pause = 5 * time.Second, 10 * time.Millisecond
	for deadline := time.Now().Add(wait); ; time.Sleep(pause) {
		w, err := audit.Open(filepath.Join(*a.data, "evidence", promotionsLog, "log"), audit.Options{})
		if err == nil || !errors.Is(err, audit.ErrBusy) || time.Now().After(deadline) {
			return w, err
		}
	}
}
