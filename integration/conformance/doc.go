// Package conformance runs the validation programs of github.com/opencontainers/runtime-tools against runc, crun and
// agentsafe under the profile "none", and holds agentsafe to what runc passes. The programs are built once, from the
// module integration/engines/runtimetools, into the cache.
//
// A program passes when it ends with status 0 and reports neither a "not ok" nor an error. That is stricter than its
// own exit status, which is 0 for most failures. Known differences stand in a table with their reason, and an entry that
// is no longer true fails the test, too. docs/CONFORMANCE.md is written from the results by -update, and compared with
// them on machines of the same kind.
//
// It refuses nothing. Data in: the runtimes of the machine. Needs root, Linux 5.15 and the programs' root file system,
// which exists for amd64.
//
// Rejected: the exit status alone as the verdict, which would count 52 of 58 as passed for a runtime that can't create
// a container.
package conformance
