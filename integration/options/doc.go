// Package options runs what people ask of Docker, Podman and buildah under runc, under agentsafe with the profile none,
// and under agentsafe with its default profile, one option or operation a row.
//
// Under none every row must come out as under runc. Under the default profile it must do so as well, or the runtime must
// refuse it with a message that names the rule and what would allow it. docs/ENGINES.md is written from these outcomes
// by -update, and a row that comes out otherwise than it says fails the test.
//
// It refuses nothing. Data in: the busybox image of package harness. Needs Debian's engines, root, Linux 5.15.
//
// Rejected: a hand-written table, which would tell what somebody believed once.
package options
