package supervise

import "fmt"

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
		if err := s.c.FinishExec(e.PID, status); err != nil {
			s.o.Warn(fmt.Sprintf("commit transaction of exec %s: %v", e.ID, err))
		}
	})
	return nil
}
