package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/ident"
)

// maxSpecBytes bounds config.json and process.json; the largest that engines write are some 100 KiB.
const maxSpecBytes = 16 << 20

// LoadSpec reads and validates config.json of a bundle.
func LoadSpec(bundle *os.File) (*specs.Spec, error) {
	var in linuxSpec
	if err := loadJSON(bundle, specConfig, &in); err != nil {
		return nil, err
	}
	spec := &specs.Spec{
		Version: in.Version, Process: in.Process, Root: in.Root, Hostname: in.Hostname, Domainname: in.Domainname,
		Mounts: in.Mounts, Hooks: in.Hooks, Annotations: in.Annotations, Linux: in.Linux,
	}
	if err := validateSpec(spec); err != nil {
		return nil, fmt.Errorf("%s: %w", specConfig, err)
	}
	return spec, nil
}

// linuxSpec is specs.Spec without what other platforms have in it: encoding/json spends a millisecond on types that
// never come.
type linuxSpec struct {
	Version     string            `json:"ociVersion"`
	Process     *specs.Process    `json:"process"`
	Root        *specs.Root       `json:"root"`
	Hostname    string            `json:"hostname"`
	Domainname  string            `json:"domainname"`
	Mounts      []specs.Mount     `json:"mounts"`
	Hooks       *specs.Hooks      `json:"hooks"`
	Annotations map[string]string `json:"annotations"`
	Linux       *specs.Linux      `json:"linux"`
}

const specConfig = "config.json"

func loadJSON(dir *os.File, name string, into any) error {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s not found in bundle %s: %w", name, dir.Name(), err)
		}
		return fmt.Errorf("open %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	if st.Size() > maxSpecBytes {
		return fmt.Errorf("%s has %d bytes, at most %d are read", name, st.Size(), maxSpecBytes)
	}
	data := make([]byte, st.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return DecodeJSON(data, name, into)
}

// DecodeJSON decodes a spec and says where it is broken.
func DecodeJSON(data []byte, name string, into any) error {
	err := json.Unmarshal(data, into)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		line := 1 + strings.Count(string(data[:min(int(syntax.Offset), len(data))]), "\n")
		return fmt.Errorf("%s, line %d: %w", name, line, err)
	case errors.As(err, &kind):
		line := 1 + strings.Count(string(data[:min(int(kind.Offset), len(data))]), "\n")
		return fmt.Errorf("%s, line %d: %s is a %s, want %s", name, line, kind.Field, kind.Value, kind.Type)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// validateSpec checks what the kernel would not, or not clearly.
func validateSpec(s *specs.Spec) error {
	if s.Version == "" {
		return invalid("ociVersion", "missing")
	}
	if !strings.HasPrefix(s.Version, "1.") {
		return invalid("ociVersion", fmt.Sprintf("%q is not supported, want 1.x", s.Version))
	}
	if s.Root == nil || s.Root.Path == "" {
		return invalid("root.path", "missing")
	}
	if s.Linux == nil {
		return invalid("linux", "missing: only Linux containers are run")
	}
	if s.Process != nil {
		if err := validateProcess(s.Process); err != nil {
			return err
		}
	}
	if err := validateNamespaces(s); err != nil {
		return err
	}
	if strings.ContainsRune(s.Linux.MountLabel, 0) {
		return invalid("linux.mountLabel", "contains a NUL byte")
	}
	if err := validateNetDevices(s); err != nil {
		return err
	}
	if err := validateHooks(s.Hooks); err != nil {
		return err
	}
	for i, p := range s.Linux.MaskedPaths {
		if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) {
			return invalid(fmt.Sprintf("linux.maskedPaths[%d]", i), fmt.Sprintf("%q is not an absolute path", p))
		}
	}
	for i, p := range s.Linux.ReadonlyPaths {
		if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) {
			return invalid(fmt.Sprintf("linux.readonlyPaths[%d]", i), fmt.Sprintf("%q is not an absolute path", p))
		}
	}
	return nil
}

func validateProcess(p *specs.Process) error {
	if len(p.Args) == 0 {
		return invalid("process.args", "must not be empty")
	}
	if p.Args[0] == "" {
		return invalid("process.args", `exec: "": executable file not found in $PATH`) // the words that engines look for
	}
	if !strings.HasPrefix(p.Cwd, "/") {
		return invalid("process.cwd", fmt.Sprintf("%q is not an absolute path", p.Cwd))
	}
	for i, a := range p.Args {
		if strings.ContainsRune(a, 0) {
			return invalid(fmt.Sprintf("process.args[%d]", i), "contains a NUL byte")
		}
	}
	for i, e := range p.Env {
		if strings.ContainsRune(e, 0) {
			return invalid(fmt.Sprintf("process.env[%d]", i), "contains a NUL byte")
		}
	}
	if strings.ContainsRune(p.Cwd, 0) || strings.ContainsRune(p.ApparmorProfile, 0) || strings.ContainsRune(p.SelinuxLabel, 0) {
		return invalid("process", "contains a NUL byte")
	}
	return nil
}

// validateHooks checks what the spec demands of hooks before anything is made. Source: runtime-spec 1.3.0, config.md
// "POSIX-platform Hooks".
func validateHooks(h *specs.Hooks) error {
	if h == nil {
		return nil
	}
	for _, kind := range []struct {
		name string
		list []specs.Hook
	}{
		{"prestart", h.Prestart}, //nolint:staticcheck // Docker's network needs it
		{"createRuntime", h.CreateRuntime},
		{"createContainer", h.CreateContainer},
		{"startContainer", h.StartContainer},
		{"poststart", h.Poststart},
		{"poststop", h.Poststop},
	} {
		for i, hook := range kind.list {
			if !strings.HasPrefix(hook.Path, "/") {
				return invalid(fmt.Sprintf("hooks.%s[%d].path", kind.name, i), fmt.Sprintf("%q is not an absolute path", hook.Path))
			}
			if hook.Timeout != nil && *hook.Timeout <= 0 {
				return invalid(fmt.Sprintf("hooks.%s[%d].timeout", kind.name, i), "must be greater than zero")
			}
		}
	}
	return nil
}

// ValidateID accepts what runc accepts, up to a file name's 255 bytes. The error is ErrInvalidID.
func ValidateID(id string) error { return ident.Validate(id) }
