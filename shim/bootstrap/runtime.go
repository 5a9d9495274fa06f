package bootstrap

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/bundle"
	"github.com/agentsafe/agentsafe/shim/options"
)

const (
	cacheDir   = "/var/lib/agentsafe/cache"
	helperName = "agentsafe-seccomp"
)

func openRuntime(namespace string, o options.Options, warn func(string)) (*container.Runtime, error) {
	root := o.Root
	if root == "" {
		root = bundle.DefaultRoot
	}
	profile, enforcement, err := container.LoadHandler(o.Profile)
	if err != nil {
		return nil, err
	}
	return container.Open(container.Options{
		Root: filepath.Join(root, namespace), SystemdCgroup: o.SystemdCgroup, Profile: profile, Enforcement: enforcement, Handler: o.Profile,
		CacheDir: cacheDir, SeccompHelper: helperPath(), Warn: warn,
	})
}

// helperPath finds the filter compiler beside this program.
func helperPath() string {
	exe, err := os.Executable()
	if err != nil {
		return helperName
	}
	return filepath.Join(filepath.Dir(exe), helperName)
}

// runtimes are the runtimes of a shim, one for each set of options.
type runtimes struct {
	namespace string
	warn      func(string)

	mu   sync.Mutex
	open map[options.Options]*container.Runtime
}

func (r *runtimes) get(o options.Options) (*container.Runtime, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rt := r.open[o]; rt != nil {
		return rt, nil
	}
	rt, err := openRuntime(r.namespace, o, r.warn)
	if err != nil {
		return nil, err
	}
	if r.open == nil {
		r.open = map[options.Options]*container.Runtime{}
	}
	r.open[o] = rt
	return rt, nil
}
