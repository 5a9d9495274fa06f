package cgroup

import (
	"sync"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/systemd"
)

// ReadHost finds the mounted hierarchies and the caller's own cgroups. The answer is kept: cgroup mounts don't change
// during the life of a process that manages containers. It returns ErrUnsupported where no cgroup file system is mounted.
func ReadHost() (Host, error) { return hostOnce() }

var hostOnce = sync.OnceValues(readHost)

// useOwnDeviceRules hooks this package's device filters into the library, which otherwise refuses device rules. See
// "Built on" in the package documentation for why its own are not linked.
var useOwnDeviceRules = sync.OnceFunc(func() {
	cgroups.DevicesSetV1 = setDevicesV1
	cgroups.DevicesSetV2 = setDevicesV2
	systemd.GenerateDeviceProps = systemdDeviceProperties
})
