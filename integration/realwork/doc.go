// Package realwork does under the runtime under test what an AI agent does all day, and the same under runc: the test
// suite of a third-party Go module, git with clones and worktrees, an npm package's installation and tests, a python
// test run, a C build with make. The outcome must be the same.
//
// It has no code but tests. Everything is offline: the Debian image (harness.Debian) brings the tools and an npm cache,
// the Go toolchain and a module come from this machine and are mounted read-only. Needs Debian's docker.io, Linux 5.15
// and root; the image takes minutes to make, once. Rejected: fetching packages during the tests, whose failures would
// be the network's.
package realwork
