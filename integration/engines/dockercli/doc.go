// Package dockercli pins a current docker command, which the integration tests build: Debian's knows no annotations. It
// holds no code.
package dockercli
