package supervise

// plugIn starts what belongs to every supervised container, in this order, before its program can run; its profile
// decides what there is to do. Exec functions are called in the order of their registration.
func (s *Supervisor) plugIn() error {
	for _, part := range []func() error{s.startEvidence, s.startDenials, s.commitLayers} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}
