package supervise

import (
	"fmt"

	"github.com/agentsafe/agentsafe/fs/layer"
	"github.com/agentsafe/agentsafe/runtime/audit"
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
	Conflicts []layer.Conflict `json:"conflicts,omitempty"`
	Reason    string           `json:"reason,omitempty"`
}

// maxConflicts bounds what one line lists; the layer keeps them all.
const maxConflicts = 20

// commitLayers decides on the transaction of every exec that has ended.
func (s *Supervisor) commitLayers() error {
	if s.c.State().Layers == "" {
		return nil
	}
	s.OnExec(func(e ExecExit) {
		if e.Transaction == "" {
			return
		}
		status := &e.Status
		if e.Status == Unknown {
			status = nil
		}
		tx, err := s.c.FinishExec(e.PID, status)
		if err == nil && tx != nil {
			err = s.Record(audit.TypeTransaction, transactionRecord{
				tx.N, e.ID, e.PID, tx.Status, tx.Exit, tx.Changes, tx.Bytes, tx.Conflicts[:min(len(tx.Conflicts), maxConflicts)], tx.Reason,
			})
		}
		if err != nil {
			s.o.Warn(fmt.Sprintf("commit transaction of exec %s: %v", e.ID, err))
		}
	})
	return nil
}
