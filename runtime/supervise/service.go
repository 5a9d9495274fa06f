package supervise

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
)

// Service is a helper process without which the container must not run.
type Service interface {
	// Start starts the process and returns once it does its work. The caller owns the pidfd; its process is killed when
	// the container ends. ctx ends with the supervisor.
	Start(ctx context.Context) (pidfd *os.File, pid int, err error)
}

// A service that ends more often than maxRestarts times within restartWindow ends the container.
const (
	maxRestarts   = 5
	restartWindow = 10 * time.Second
)

// StartService starts a helper and keeps it running: it is started again whenever it ends, and if that does no good the
// container is ended. It is called before the container's program runs; the error is the first start's.
func (s *Supervisor) StartService(name string, svc Service) error {
	pidfd, pid, err := svc.Start(s.ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.group.Go(func() { s.keepRunning(name, svc, pidfd, pid) })
	return nil
}

func (s *Supervisor) keepRunning(name string, svc Service, pidfd *os.File, pid int) {
	var restarts []time.Time
	for {
		ended := waitExit(s.ctx, pidfd, pid, 0)
		unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0) //nolint:errcheck // gone is what we want
		pidfd.Close()
		if !ended || s.ctx.Err() != nil {
			return
		}
		now := time.Now()
		restarts = append(restarts, now)
		for len(restarts) > 0 && now.Sub(restarts[0]) > restartWindow {
			restarts = restarts[1:]
		}
		s.o.Warn(name + " has ended: it is started again")
		var err error
		if len(restarts) > maxRestarts {
			err = fmt.Errorf("it has ended %d times within %s", len(restarts), restartWindow)
		} else {
			pidfd, pid, err = svc.Start(s.ctx)
		}
		if s.ctx.Err() != nil {
			return
		}
		if err != nil {
			s.expire(container.End{Reason: container.EndSupervisor, Message: fmt.Sprintf("lost its %s: %v", name, err)})
			return
		}
	}
}
