package rootfs

import (
	"os"
	"strings"
	"sync"
)

//nolint:gochecknoglobals // a probe, asked once
var inUserNamespace = sync.OnceValue(func() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !isInitialMap(string(data))
})

// isInitialMap says whether a uid_map is that of the initial user namespace: every id, as itself. A namespace that was
// made with this very map can't be told from it, and need not be: its root is the host's.
func isInitialMap(text string) bool {
	fields := strings.Fields(text)
	return len(fields) == 3 && fields[0] == "0" && fields[1] == "0" && fields[2] == "4294967295"
}

// InUserNamespace reports whether this process stands in a user namespace that maps ids, as that of rootless Podman or
// of a user's own does. The kernel then makes no device nodes, writes no trusted.* attributes, and keeps the options of
// mounts that came from outside. Without proc the answer is no. Source: user_namespaces(7).
func InUserNamespace() bool { return inUserNamespace() }
