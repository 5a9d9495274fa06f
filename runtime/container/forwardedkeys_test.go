package container

import "testing"

func TestForwardsKeys(t *testing.T) {
	for path, want := range map[string]bool{
		"/tmp/.buildkit-ssh-sock726540/ssh_auth_sock":           true,
		"/var/lib/docker/tmp/.buildkit-ssh-sock1/ssh_auth_sock": true,
		"/run/docker.sock":                                           false,
		"/tmp/.buildkit-ssh-sock1/docker.sock":                       false,
		"/tmp/x/ssh_auth_sock":                                       false,
		"/tmp/.buildkit-ssh-sock1/ssh_auth_sock/docker.sock":         false,
		"/tmp/x/.buildkit-ssh-sock1/deeper/ssh_auth_sock":            false,
		"/tmp/.buildkit-ssh-sock1/../../run/ssh_auth_sock/buildkitd": false,
	} {
		if got := (listener{path: path}).forwardsKeys(); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
}
