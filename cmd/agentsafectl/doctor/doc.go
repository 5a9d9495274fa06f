// Package doctor says what this kernel and this host can enforce.
//
// Probe collects Facts by asking the kernel, each question with a call that
// changes nothing or in a child in namespaces of its own. Judge is pure: it turns
// facts into rows of a report, so that every verdict has a test that needs no
// such kernel. Report prints itself as a table or as JSON.
//
// It never infers a feature from the kernel's version where the feature can be
// asked for: distributions backport, and sandboxes take away.
//
// It refuses to change anything: no module is loaded on purpose, no directory
// made, no daemon contacted. Of engines it runs `PROGRAM --version` and reads
// their configuration files.
//
// Minimum kernel: any; below 5.15 that is what it says.
//
// Alternatives rejected: reading the kernel's configuration (often absent, and
// it says what was built, not what a sysctl or a seccomp filter left of it).
package doctor
