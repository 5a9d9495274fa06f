// Command agentsafe-gateway is the egress process of one container: see package gateway. Nobody starts it by hand;
// runtime/container does, with everything that it needs as descriptors.
//
// Descriptors are named in LISTEN_FDNAMES, in order from 3 on, as systemd does it: config (a connected socket that
// delivers the configuration as JSON and takes back "ready" or an error), task (a pidfd of the container's first
// process), log, control, refused (where the kernel tells of packets that the rules have refused), authority and authoritykey (PEM, where the administrator has TLS inspected), and any number of
// tcp, dns and dnstcp.
//
// It reads the host's certificate authorities, confines itself (package confine), answers ready, and serves until the
// task has ended. It refuses to run with a uid of 0 or with capabilities.
package main
