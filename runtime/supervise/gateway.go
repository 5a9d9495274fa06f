package supervise

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// gatewayGrace is how long a gateway may have ended before its container: it watches the container itself.
const gatewayGrace = 100 * time.Millisecond

// keepGateway starts the container's egress process again whenever it ends. Start has started the first one. While there
// is none the container has no network.
func (s *Supervisor) keepGateway() {
	var restarts []time.Time
	for {
		pidfd, pid, err := s.c.Gateway()
		if errors.Is(err, container.ErrNoGateway) && len(restarts) == 0 {
			return
		}
		if err == nil {
			ended := waitExit(s.ctx, pidfd, pid, 0)
			pidfd.Close()
			if !ended {
				return
			}
		}
		if waitExit(s.ctx, s.init, s.c.State().InitPID, gatewayGrace) || s.ctx.Err() != nil {
			return
		}
		now := time.Now()
		restarts = append(restarts, now)
		for now.Sub(restarts[0]) > restartWindow {
			restarts = restarts[1:]
		}
		s.o.Warn("the gateway has ended: it is started again")
		if len(restarts) > maxRestarts {
			err = fmt.Errorf("it has ended %d times within %s", len(restarts), restartWindow)
		} else {
			err = s.c.RestartGateway()
		}
		if err != nil && s.ctx.Err() == nil {
			s.expire(container.End{Reason: container.EndSupervisor, Message: fmt.Sprintf("lost its gateway: %v", err)})
			return
		}
	}
}
