package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// ProfileDir is where `agentsafectl profile install` puts the profiles that an administrator has written. They are
// JSON there: the runtime is started for every operation of a container, and a YAML parser would cost each start more
// than the profile.
const ProfileDir = "/etc/agentsafe/profiles.d"

const maxProfileBytes = 1 << 20

// LoadProfile returns a built-in profile or one that is installed; "" is the default. A file that others than root
// could have written is refused: it decides what a container may do.
func LoadProfile(name string) (*profiles.Profile, error) {
	if name == "" {
		name = profiles.DefaultName
	}
	if p, err := profiles.Builtin(name); err == nil {
		return p, nil
	}
	if name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("profile %q: not a name", name)
	}
	p, err := readProfile(filepath.Join(ProfileDir, name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		_, unknown := profiles.Builtin(name)
		return nil, fmt.Errorf("%w, nor installed in %s (agentsafectl profile install)", unknown, ProfileDir)
	}
	if err != nil {
		return nil, fmt.Errorf("profile %q: %w", name, err)
	}
	if p.Name != name {
		return nil, fmt.Errorf("profile %q: the file calls itself %q", name, p.Name)
	}
	return p, nil
}

func readProfile(path string) (*profiles.Profile, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	const othersWrite = 0o022
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&othersWrite != 0 {
		return nil, fmt.Errorf("%s is not a file that root alone can write", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxProfileBytes))
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p profiles.Profile
	if err := dec.Decode(&p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &p, p.Validate()
}
