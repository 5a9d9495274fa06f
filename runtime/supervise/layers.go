package supervise

import (
	"fmt"
	"os"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// transactionRecord is a line of evidence: what an exec changed, and what became of it.
type transactionRecord struct {
	N         int              `json:"n"`
	Exec      string           `json:"exec,omitempty"`
	PID       int              `json:"pid"`
	Status    layer.Status     `json:"status"`
	Exit      *int             `json:"exit,omitempty"`
	Changes   int              `json:"changes"`
	Bytes     int64            `json:"bytes"`
	Digest    string           `json:"digest,omitempty"`
	Conflicts []layer.Conflict `json:"conflicts,omitempty"`
	Reason    string           `json:"reason,omitempty"`
}

// recordTransaction writes what became of an exec's layer, with the digest of what it changed.
func (s *Supervisor) recordTransaction(e *ExecExit, tx *layer.Transaction) error {
	if s.evidence == nil {
		return nil
	}
	r := transactionRecord{
		N: tx.N, Exec: e.ID, PID: e.PID, Status: tx.Status, Exit: tx.Exit, Changes: tx.Changes, Bytes: tx.Bytes,
		Conflicts: tx.Conflicts[:min(len(tx.Conflicts), maxConflicts)], Reason: tx.Reason,
	}
	if tx.Changes > 0 {
		l, err := layer.Open(s.c.State().Layers, s.c.ID())
		if err != nil {
			return err
		}
		defer l.Close()
		if r.Digest, err = l.Digest(tx.N); err != nil {
			s.o.Warn(fmt.Sprintf("digest of transaction %d: %v", tx.N, err))
		}
	}
	return s.Record(audit.TypeTransaction, r)
}

// Transact implements container.Supervisor.
func (s *Supervisor) Transact(r *wire.Transact) (n int, ns *os.File, err error) {
	return s.c.Transact(r)
}

// Abandon implements container.Supervisor.
func (s *Supervisor) Abandon(n int) error { return s.c.Abandon(n) }

// maxConflicts bounds what one line lists; the layer keeps them all.
const maxConflicts = 20

// commitLayers decides on the transaction of every exec that has ended.
func (s *Supervisor) commitLayers() error {
	if s.c.State().Layers == "" {
		return nil
	}
	s.OnExec(func(e *ExecExit) {
		if e.Transaction == "" {
			return
		}
		status := &e.Status
		if e.Status == Unknown {
			status = nil
		}
		tx, later, err := s.c.FinishExec(e.PID, status)
		e.Layer = tx
		if err == nil && tx != nil {
			if later != nil && tx.Changes > 0 && s.evidence != nil {
				later() // the digest is taken of layers that nobody else has open
				later = nil
			}
			err = s.recordTransaction(e, tx)
			s.noteDropped(tx)
		}
		if err != nil {
			s.o.Warn(fmt.Sprintf("commit transaction of exec %s: %v", e.ID, err))
		}
		s.group.Go(func() {
			if later != nil {
				later()
			}
			s.c.PrepareTransaction()
		})
	})
	return nil
}
