// Package attacks tries what has broken container runtimes, against the runtime's command line: each test is named after
// the attack, plays it from inside a container or from a hostile bundle, and looks at what the host has lost.
//
// Data in: the runtime under test (see harness) and bundles that the tests spoil. Data out: failures. The attacks run
// with the profile none wherever that leaves the attacker more: the runtime itself must hold, not only the policy above
// it. The comment of a test says what was seen when the line that defends was taken out.
//
// It refuses to reach beyond its box (integration/harness): host files that an attack could hit are markers below the
// box's directory. Needs Linux 5.15 and root. Rejected: assertions on error texts where the attack's effect can be seen.
package attacks
