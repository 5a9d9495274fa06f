package container

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// recordRefusal has a refusal of the profile's written into evidence of its own, if the profile keeps any: a container
// that was never made leaves no other trace of who asked for it.
func (cr *creation) recordRefusal(err error) {
	refusal, ok := errors.AsType[*profiles.RefusedError](err)
	if !ok || cr.asked == nil || cr.asked.Unrestricted || cr.asked.Evidence.Mode != "on" {
		return
	}
	p := cr.spec.Process
	r := &wire.Refused{
		ID: cr.o.ID, Bundle: cr.bundle.Name(), Profile: cr.asked.Name, Annotations: map[string]string{},
		Args: wire.Shorten(p.Args), EnvNames: wire.Shorten(envNames(p.Env)), Cwd: clip(p.Cwd), UID: p.User.UID, GID: p.User.GID,
		What: clip(refusal.What), Rule: clip(refusal.Rule), Allow: clip(refusal.Allow),
	}
	for key, value := range cr.spec.Annotations {
		const most = 16
		if told(key) && len(r.Annotations) < most {
			r.Annotations[key] = clip(value)
		}
	}
	record := cr.o.Refused
	if record == nil {
		r.Caller, record = parentName(), cr.rt.monitorRefusal
	}
	if err := record(r); err != nil {
		cr.rt.opts.Warn("evidence of a refusal: " + err.Error())
	}
}

// clip bounds what a message holds of the spec's.
func clip(s string) string {
	const most = 1 << 10
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// told reports whether evidence tells of an annotation.
func told(key string) bool {
	return strings.HasPrefix(key, profiles.AnnotationPrefix) || strings.HasPrefix(key, "io.kubernetes.cri.") ||
		key == "org.opencontainers.image.ref.name" || key == "agentsafe.dev.image"
}

// parentName is the name of the program that has started this one.
func parentName() string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// monitorRefusal has the monitor program write a refusal down: what writes evidence is not linked into this one.
func (r *Runtime) monitorRefusal(refused *wire.Refused) error {
	m, err := r.startMonitor()
	if err != nil {
		return err
	}
	defer m.stop()
	return wire.Call(m.conn, launchTimeout, &wire.Request{Op: wire.OpRefused, Refused: refused})
}
