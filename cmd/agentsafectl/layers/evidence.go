package layers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise"
)

// promotionRecord is a line of evidence about a promotion, and who asked for it.
type promotionRecord struct {
	State   string   `json:"state"`
	By      string   `json:"by"`
	Request int      `json:"request,omitempty"`
	Digest  string   `json:"digest"`
	Items   int      `json:"items"`
	Paths   []string `json:"paths"`
	// Check is what the promotion was made to depend on.
	Check *layer.Check `json:"check,omitempty"`
}

// maxRecordPaths bounds the paths in one record.
const maxRecordPaths = 500

// record writes a promotion into the log of the container, if it has one: through its supervisor while it runs, and
// behind the statement when it is gone.
func (a *app) record(l *layer.Layers, plan *layer.PromotionPlan, request int, check *layer.Check) error {
	dir := a.logOf(l)
	if dir == "" {
		return nil
	}
	taken := plan.Taken()
	r := promotionRecord{State: "promoted", By: caller(), Request: request, Digest: plan.Digest, Items: len(taken), Paths: []string{}, Check: check}
	for i := range taken[:min(len(taken), maxRecordPaths)] {
		r.Paths = append(r.Paths, taken[i].Workspace+"/"+taken[i].Path)
	}
	w, err := audit.Open(dir, audit.Options{})
	if err == nil {
		return errors.Join(w.Append(audit.TypePromotion, &r), w.Close())
	}
	if !errors.Is(err, audit.ErrBusy) {
		return fmt.Errorf("record promotion: %w", err)
	}
	return a.recordRunning(l.ID, &r)
}

// logOf finds the log of the container that the layers are of; "" if it keeps none. They were made a moment after it.
func (a *app) logOf(l *layer.Layers) string {
	base := filepath.Join(*a.data, filepath.Base(supervise.EvidenceDir), l.ID)
	runs, err := os.ReadDir(base)
	if err != nil {
		return ""
	}
	const slack = time.Minute
	for _, run := range slices.Backward(runs) { // names sort by time
		at, err := time.Parse(supervise.LogTime, run.Name())
		if since := l.Created.Sub(at); err == nil && since > -time.Second && since < slack {
			return filepath.Join(base, run.Name())
		}
	}
	return ""
}

// caller names the person: the one behind sudo, if there is one.
func caller() string {
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}

// recordRunning hands a record to the supervisor of a container that runs.
func (a *app) recordRunning(id string, r *promotionRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record promotion: %w", err)
	}
	list, err := ps.Find([]string{*a.state})
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.ID != id {
			continue
		}
		rt, err := container.Open(container.Options{Root: e.Root})
		if err != nil {
			return err
		}
		defer rt.Close()
		c, err := rt.Load(id)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.RecordEvidence(audit.TypePromotion, data)
	}
	return fmt.Errorf("record promotion: container %q writes a log, and its state is not found: %w", id, container.ErrNotExist)
}
