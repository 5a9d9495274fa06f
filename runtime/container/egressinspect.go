package container

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// Inspection names the administrator's authority for looking into TLS: files in PEM.
type Inspection struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// checkInspection refuses files that could not be used. What is in them `agentsafectl config` reads.
func (n *HostNetwork) checkInspection() error {
	if (n.InspectCertificate == "") != (n.InspectKey == "") {
		return errors.New("inspectCertificate, inspectKey: want both, or none")
	}
	if n.InspectKey == "" {
		return nil
	}
	if !filepath.IsAbs(n.InspectCertificate) || !filepath.IsAbs(n.InspectKey) {
		return errors.New("inspectCertificate, inspectKey: want absolute paths")
	}
	if _, err := readTrusted(n.InspectCertificate); err != nil {
		return fmt.Errorf("inspectCertificate: %w", err)
	}
	f, err := openKey(n.InspectKey)
	if err != nil {
		return fmt.Errorf("inspectKey: %w", err)
	}
	return f.Close()
}

// openKey opens a private key, which root alone may be able to read or write. The caller closes it.
func openKey(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	const others = 0o077
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !byRoot(st.Uid) || st.Mode&others != 0 {
		f.Close()
		return nil, fmt.Errorf("%s: want a regular file of root's that nobody else can read or write (chown root, chmod 600)", path)
	}
	return f, nil
}

// inspection is the authority for a profile that has TLS inspected; nil for one that does not ask for that. Only the
// host's configuration turns it on.
func (n *HostNetwork) inspection(p *profiles.Profile, configDir string) (*Inspection, error) {
	why := p.Network.Inspects()
	if why == "" {
		return nil, nil //nolint:nilnil // no inspection is none
	}
	if n.InspectKey == "" {
		return nil, &profiles.RefusedError{
			What: why + ", which has TLS inspected", Rule: "inspection is off unless the host's administrator turns it on with an authority of their own",
			Allow: fmt.Sprintf("`inspectCertificate = \"FILE\"` and `inspectKey = \"FILE\"` below `[network]` in %s, then `agentsafectl config apply`", filepath.Join(configDir, ConfigSource)),
		}
	}
	// Asked for now and opened again for the gateway: an engine copes better with a container that can't be created than with
	// one that can't be started.
	key, err := openKey(n.InspectKey)
	if err != nil {
		return nil, fmt.Errorf("network.inspectKey of the host's configuration: %w", err)
	}
	return &Inspection{Certificate: n.InspectCertificate, Key: n.InspectKey}, key.Close()
}

// open opens both files for the gateway, which closes them.
func (i *Inspection) open() (cert, key *os.File, err error) {
	if key, err = openKey(i.Key); err != nil {
		return nil, nil, fmt.Errorf("network.inspectKey of the host's configuration: %w", err)
	}
	if cert, err = openTrusted(i.Certificate); err != nil {
		key.Close()
		return nil, nil, fmt.Errorf("network.inspectCertificate of the host's configuration: %w", err)
	}
	return cert, key, nil
}

// hostBundles are where distributions keep the certificates of the authorities that everybody trusts.
func hostBundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
	}
}

const maxBundleBytes = 4 << 20

// certificates are what the task's programs have to trust: the administrator's authority alone, for programs that add it to
// their own, and with the host's authorities, for those that have room for one file.
func (i *Inspection) certificates() (authority, bundle []byte, err error) {
	if authority, err = readTrusted(i.Certificate); err != nil {
		return nil, nil, fmt.Errorf("network.inspectCertificate of the host's configuration: %w", err)
	}
	if n := len(authority); n > 0 && authority[n-1] != '\n' {
		authority = append(authority, '\n')
	}
	for _, name := range hostBundles() {
		f, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		bundle, err = io.ReadAll(io.LimitReader(f, maxBundleBytes))
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		break
	}
	if n := len(bundle); n > 0 && bundle[n-1] != '\n' {
		bundle = append(bundle, '\n')
	}
	return authority, append(bundle, authority...), nil
}

// inspectEnv tells a process whom to trust, by the variables that its programs read: OpenSSL's, Go's and many more read the
// first, curl, git, Python's requests, pip, npm, cargo, Deno and AWS's tools one of their own. node adds its file to the
// authorities that it comes with.
func inspectEnv(p *specs.Process, i *Inspection) {
	if i == nil || p == nil {
		return
	}
	env := slices.Clone(p.Env)
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT", "npm_config_cafile", "CARGO_HTTP_CAINFO", "DENO_CERT", "AWS_CA_BUNDLE",
	} {
		env = setEnv(env, name, profiles.InForceDir+"/"+profiles.InForceBundle)
	}
	env = setEnv(env, "NODE_EXTRA_CA_CERTS", profiles.InForceDir+"/"+profiles.InForceAuthority)
	p.Env = javaEnv(env)
}

// javaEnv has every JVM trust the store, behind what it is told already. A JVM says on its standard error that it was told.
func javaEnv(env []string) []string {
	const name = "JAVA_TOOL_OPTIONS"
	const option = "-Djavax.net.ssl.trustStore=" + profiles.InForceDir + "/" + profiles.InForceKeystore
	value := option
	for _, kv := range env {
		if have, ok := strings.CutPrefix(kv, name+"="); ok && have != "" && !strings.Contains(have, option) {
			value = have + " " + option
		} else if ok && have != "" {
			value = have // an exec may have been given the variables of the first process
		}
	}
	return setEnv(env, name, value)
}
