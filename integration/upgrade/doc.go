// Package upgrade has containers that an older agentsafe created managed by this one, as happens on every host whose
// packages are upgraded while containers run: the version before this one, built from this repository's history and
// cached by commit.
//
// It refuses nothing. Data in: the git repository around it; in a clone without history the tests say so and are skipped.
//
// Rejected: stored state files of old versions. They tell nothing of running processes, sockets and monitors.
package upgrade
