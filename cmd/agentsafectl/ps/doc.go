// Package ps lists the containers of a host that run under agentsafe, whichever engine has created them: engine,
// profile, network, status.
//
// An engine keeps the runtime's state where it likes and tells nobody, so the usual places are looked at, and those that
// the caller names. Data in: state directories. Data out: entries, a table. It changes nothing, and passes over
// containers that are going away while it looks, and over those of other runtimes.
//
// Minimum kernel: that of agentsafe. Rejected: a registry that every create writes to, which would cost each start for
// the sake of a rare question.
package ps
