package profiles

import (
	"path"
	"strings"
)

// secretVariables are patterns of names of variables that hold long-lived secrets. What a name can't tell (a password
// within DATABASE_URL) is not found.
func secretVariables() []string {
	return []string{
		"*_TOKEN", "*_SECRET", "*_SECRET_*", "*_SECRETS", "*_PASSWORD", "*_PASSWD", "*_PASSPHRASE", "*_API_KEY", "*_APIKEY",
		"*_ACCESS_KEY", "*_ACCESS_KEY_ID", "*_PRIVATE_KEY", "*_CREDENTIALS", "*_AUTH_CONFIG", "*_CONNECTION_STRING",
		"PASSWORD", "SECRET", "TOKEN", "API_KEY", "PGPASSWORD", "MYSQL_PWD", "REDISCLI_AUTH", "SSH_AUTH_SOCK", "GPG_KEY_DATA",
		"KUBECONFIG", "NETRC",
	}
}

// secretPath is a place where secrets are kept: the end of a path, by components; each may be a pattern of path.Match.
type secretPath struct{ path, what string }

// secretPaths holds for the source of a mount and for its place in the container.
func secretPaths() []secretPath {
	return []secretPath{
		{".ssh", "SSH keys"},
		{".gnupg", "GnuPG keys"},
		{".aws", "AWS credentials"},
		{".azure", "Azure credentials"},
		{".config/gcloud", "Google Cloud credentials"},
		{".kube", "Kubernetes credentials"},
		{".docker", "registry credentials"},
		{".docker/config.json", "registry credentials"},
		{".config/gh", "GitHub credentials"},
		{".config/hub", "GitHub credentials"},
		{".config/containers/auth.json", "registry credentials"},
		{".netrc", "passwords of hosts"},
		{".git-credentials", "passwords of git hosts"},
		{".npmrc", "registry credentials"},
		{".pypirc", "registry credentials"},
		{".cargo/credentials*", "registry credentials"},
		{".gem/credentials", "registry credentials"},
		{".terraform.d/credentials.tfrc.json", "Terraform credentials"},
		{".vault-token", "a Vault token"},
		{".password-store", "passwords"},
		{".local/share/keyrings", "keyrings"},
		{".mozilla", "a browser's sessions"},
		{".config/google-chrome", "a browser's sessions"},
		{".config/chromium", "a browser's sessions"},
		{".claude/.credentials.json", "an agent's credentials"},
		{".codex/auth.json", "an agent's credentials"},
		{".gemini/oauth_creds.json", "an agent's credentials"},
		{".local/share/opencode/auth.json", "an agent's credentials"},
		{".env", "a file of variables"},
		{".env.*", "a file of variables"},
		{"id_rsa", "an SSH key"},
		{"id_ed25519", "an SSH key"},
		{"id_ecdsa", "an SSH key"},
		{"*.pem", "a key or certificate"},
		{"*.key", "a key"},
		{"*.p12", "a key store"},
		{"*.keystore", "a key store"},
		{"*.kubeconfig", "Kubernetes credentials"},
		{"run/secrets", "an engine's secrets"},
		{"run/secrets/*", "an engine's secret"},
		{"run/secrets/kubernetes.io/serviceaccount", "a service account's token"},
		{"run/secrets/eks.amazonaws.com/serviceaccount", "a service account's token"},
		{"run/secrets/azure/tokens", "a service account's token"},
		{"kubernetes.io~secret/*", "a Kubernetes secret"},
		{"kubernetes.io~projected/kube-api-access-*", "a service account's token"},
		{"ssh-*/agent.*", "an SSH agent"},
		{"S.gpg-agent*", "a GnuPG agent"},
		{"gnupg/S.*", "a GnuPG agent"},
		{"keyring/ssh", "an SSH agent"},
		{"keyring/control", "a keyring"},
	}
}

// secretAt says what secret a path stands for, "" for none.
func secretAt(p string) string {
	for _, s := range secretPaths() {
		if endsWith(p, s.path) {
			return s.what
		}
	}
	return ""
}

// endsWith matches the last components of a path.
func endsWith(p, pattern string) bool {
	n := strings.Count(pattern, "/") + 1
	at := len(p)
	for range n {
		if at = strings.LastIndexByte(p[:max(at, 0)], '/'); at < 0 {
			return false
		}
	}
	ok, err := path.Match(pattern, p[at+1:])
	return ok && err == nil
}
