package options

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Options are the settings of a runtime handler. The zero value is the default.
type Options struct {
	// Profile names the policy; "" is the host's default.
	Profile string `json:"profile,omitempty"`
	// Root is the directory of container states, below which each containerd namespace has its own.
	Root          string `json:"root,omitempty"`
	SystemdCgroup bool   `json:"systemdCgroup,omitempty"`
	NoPivotRoot   bool   `json:"noPivotRoot,omitempty"`
	NoNewKeyring  bool   `json:"noNewKeyring,omitempty"`
	// IOUID and IOGID own the pipes of the standard streams; 0 is the container's user.
	IOUID uint32 `json:"ioUid,omitempty"`
	IOGID uint32 `json:"ioGid,omitempty"`
	// ShimCgroup is the cgroup that the shim itself moves to, relative to the root of the hierarchies.
	ShimCgroup string `json:"shimCgroup,omitempty"`
}

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// Names of the types that are known.
const (
	runcType    = "containerd.runc.v1.Options"
	runtimeType = "runtimeoptions.v1.Options"
)

// ErrUnknownType says that options are of a type that this runtime does not have.
var ErrUnknownType = errors.New("options of an unknown type")

// Parse reads options; nil is none.
func Parse(packed *anypb.Any) (Options, error) {
	var o Options
	if packed == nil || (packed.TypeUrl == "" && len(packed.Value) == 0) {
		return o, nil
	}
	name := packed.TypeUrl[strings.LastIndexByte(packed.TypeUrl, '/')+1:]
	switch name {
	case runcType:
		var in runcoptions.Options
		if err := proto.Unmarshal(packed.Value, &in); err != nil {
			return o, fmt.Errorf("decode options %s: %w", name, err)
		}
		o = Options{
			Root: in.Root, SystemdCgroup: in.SystemdCgroup, NoPivotRoot: in.NoPivotRoot, NoNewKeyring: in.NoNewKeyring,
			IOUID: in.IoUid, IOGID: in.IoGid, ShimCgroup: in.ShimCgroup,
		}
	case runtimeType:
		var in runtimeoptions.Options
		if err := proto.Unmarshal(packed.Value, &in); err != nil {
			return o, fmt.Errorf("decode options %s: %w", name, err)
		}
		if err := o.configure(&in); err != nil {
			return Options{}, err
		}
	default:
		return o, fmt.Errorf("%w %q, known are %s and %s", ErrUnknownType, packed.TypeUrl, runcType, runtimeType)
	}
	return o, o.check()
}

func (o *Options) configure(in *runtimeoptions.Options) error {
	if in.ConfigPath != "" {
		data, err := readConfig(in.ConfigPath)
		if err != nil {
			return err
		}
		if err := o.decode(data); err != nil {
			return fmt.Errorf("runtime configuration %s: %w", in.ConfigPath, err)
		}
	}
	if err := o.decode(in.ConfigBody); err != nil {
		return fmt.Errorf("ConfigBody: %w", err)
	}
	return nil
}

func readConfig(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("ConfigPath %q is not absolute", path)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open runtime configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read runtime configuration: %w", err)
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("runtime configuration %s has more than %d bytes", path, maxConfigBytes)
	}
	return data, nil
}

// decode reads JSON, or the flat part of TOML that settings need: one `key = value` a line, strings, booleans and
// numbers. A body that is neither may be base64, since that is how JSON configurations carry bytes.
func (o *Options) decode(data []byte) error {
	text := bytes.TrimSpace(data)
	if len(text) == 0 {
		return nil
	}
	if text[0] != '{' {
		if !bytes.ContainsAny(text, "=\n#") || text[len(text)-1] == '=' {
			if plain, err := base64.StdEncoding.DecodeString(string(text)); err == nil {
				return o.decode(plain)
			}
		}
		var err error
		if text, err = flatTOML(string(text)); err != nil {
			return err
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		return fmt.Errorf("decode settings: %w", err)
	}
	return nil
}

// flatTOML turns lines of `key = value` into JSON.
func flatTOML(text string) ([]byte, error) {
	settings := map[string]json.RawMessage{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("line %d is not a setting: %q", n, line)
		}
		if _, ok := settings[key]; ok {
			return nil, fmt.Errorf("line %d sets %q again", n, key)
		}
		raw, err := scalar(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		settings[key] = raw
	}
	return json.Marshal(settings)
}

func scalar(value string) (json.RawMessage, error) {
	if value[0] == '\'' {
		end := strings.IndexByte(value[1:], '\'')
		if end < 0 || !isComment(value[end+2:]) {
			return nil, fmt.Errorf("%s is not a string", value)
		}
		return json.Marshal(value[1 : end+1])
	}
	if value[0] == '"' {
		quoted, err := strconv.QuotedPrefix(value)
		if err != nil || !isComment(value[len(quoted):]) {
			return nil, fmt.Errorf("%s is not a string", value)
		}
		s, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("%s is not a string", value)
		}
		return json.Marshal(s)
	}
	value, _, _ = strings.Cut(value, "#")
	value = strings.TrimSpace(value)
	if !json.Valid([]byte(value)) {
		return nil, fmt.Errorf("%s is not a string, a number or a boolean", value)
	}
	return json.RawMessage(value), nil
}

func isComment(rest string) bool {
	rest = strings.TrimSpace(rest)
	return rest == "" || rest[0] == '#'
}

// maxID is the largest uid that the kernel has; the next one means "leave it".
const maxID = 1<<32 - 2

func (o *Options) check() error {
	if o.Root != "" && !filepath.IsAbs(o.Root) {
		return fmt.Errorf("root %q is not absolute", o.Root)
	}
	if o.IOUID > maxID || o.IOGID > maxID {
		return fmt.Errorf("ioUid %d, ioGid %d: not an id", o.IOUID, o.IOGID) // CVE-2024-40635 was an id that wrapped round
	}
	if o.ShimCgroup != "" && !filepath.IsLocal(strings.TrimPrefix(o.ShimCgroup, "/")) {
		return fmt.Errorf("shimCgroup %q leaves the hierarchy", o.ShimCgroup)
	}
	return nil
}
