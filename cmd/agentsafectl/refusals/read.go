package refusals

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/ps"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/denials"
)

// errNone says that no container has the name, alive or in the evidence.
var errNone = errors.New("no such container, and no evidence of one")

// source is where the denials of a container come from: a file that grows, or a list.
type source struct {
	id   string
	file *os.File // nil without a supervisor, or when the container is gone
	dir  *os.File // its state directory, of which the removal is the end
	list []denials.Denial
	// remark says what the list can't have; "" for nothing.
	remark string
}

func (s *source) close() {
	for _, f := range []*os.File{s.file, s.dir} {
		if f != nil {
			f.Close()
		}
	}
}

// open finds a container by its id or an unambiguous beginning of it, whichever engine has created it.
func open(root, evidence, unsafeID string) (*source, error) {
	if err := container.ValidateID(unsafeID); err != nil {
		return nil, err
	}
	entries, err := ps.Find([]string{root})
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(slices.Clone(entries), func(e ps.Entry) bool { return e.ID != unsafeID })
	if len(found) == 0 {
		found = slices.DeleteFunc(entries, func(e ps.Entry) bool { return !strings.HasPrefix(e.ID, unsafeID) })
	}
	switch len(found) {
	case 0:
		return fromEvidence(evidence, unsafeID)
	case 1:
		return fromState(found[0].Root, found[0].ID)
	}
	return nil, fmt.Errorf("%q is the beginning of %d containers' ids", unsafeID, len(found))
}

func fromState(root, id string) (*source, error) {
	rt, err := container.Open(container.Options{Root: root})
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	c, err := rt.Load(id)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s := &source{id: id}
	fd, err := unix.FcntlInt(c.Dir().Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("open state of container %q: %w", id, err)
	}
	s.dir = os.NewFile(uintptr(fd), id)
	s.file, err = c.OpenDenials()
	if err == nil {
		return s, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		s.close()
		return nil, err
	}
	d, err := c.Detail()
	if err != nil {
		s.close()
		return nil, err
	}
	for _, n := range d.Policy.Notes {
		s.list = append(s.list, denials.Denial{Time: c.State().Created, Kind: denials.Policy, What: n.Text, Rule: n.Rule})
	}
	if d.Policy.Profile.Unrestricted {
		s.remark = fmt.Sprintf("its profile %q has no rules", d.Policy.Profile.Name)
	} else {
		s.remark = fmt.Sprintf("nobody watches a container of profile %q: these are the notes of its creation; `evidence: {denials: kernel}` in a profile has refusals listed", d.Policy.Profile.Name)
	}
	return s, nil
}

// fromEvidence reads what a container left that had evidence on.
func fromEvidence(dir, id string) (*source, error) {
	runs, err := os.ReadDir(filepath.Join(dir, id))
	if err != nil || len(runs) == 0 {
		return nil, fmt.Errorf("container %q: %w", id, errNone)
	}
	s := &source{id: id, remark: "the container is gone: this is from its evidence"}
	run := filepath.Join(dir, id, runs[len(runs)-1].Name()) // names sort by time
	err = audit.Read(run, func(r *audit.Record, _ []byte) error {
		if d, ok := fromRecord(r); ok {
			s.list = append(s.list, d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func fromRecord(r *audit.Record) (denials.Denial, bool) {
	switch r.Type {
	case audit.TypeEgress:
		return denials.FromGateway(r.Data)
	case audit.TypeLimit:
		var e container.End
		err := json.Unmarshal(r.Data, &e)
		return denials.Denial{Time: r.Time, Kind: denials.Limit, What: string(e.Reason), Answer: "ended", Why: e.Message}, err == nil
	case audit.TypeDenial:
		var note struct {
			Rule string `json:"rule"`
			Text string `json:"text"`
		}
		if json.Unmarshal(r.Data, &note) == nil && note.Text != "" {
			return denials.Denial{Time: r.Time, Kind: denials.Policy, What: note.Text, Rule: note.Rule}, true
		}
		d, err := denials.ParseLine(r.Data)
		return d, err == nil
	}
	return denials.Denial{}, false
}
