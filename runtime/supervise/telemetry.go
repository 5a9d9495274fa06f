package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// TelemetryConfig is the host's configuration of telemetry: if the file is there, complete logs are sent to a collector.
const TelemetryConfig = "/etc/agentsafe/telemetry.json"

// sendTelemetry has agentsafectl, beside this program, send the log. Nobody waits for a collector: what does not arrive
// is sent later, by agentsafectl telemetry --pending.
func (s *Supervisor) sendTelemetry(dir string) {
	if _, err := os.Stat(TelemetryConfig); err != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		s.o.Warn("telemetry: " + err.Error())
		return
	}
	cmd := exec.Command(filepath.Join(filepath.Dir(self), "agentsafectl"), "telemetry", dir) //nolint:noctx // it outlives the container
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env, cmd.Dir = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
	if err := cmd.Start(); err != nil {
		s.o.Warn(fmt.Sprintf("telemetry: %v", err))
		return
	}
	go cmd.Wait() //nolint:errcheck // a program that stays must not keep a zombie
}
