// Package moby pins a current Docker engine, whose dockerd and docker-proxy the integration tests build. It holds no
// code.
package moby
