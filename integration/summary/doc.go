// Summary turns the JSON events of `go test -json` (standard input) into what a person reads at the end of a run: a
// line per package, the output of what failed, each skipped test with the probe that skipped it, and the closing line
// "N passed, N failed, N skipped".
//
// It exits 1 when a test or a package failed, when no test ran, or when a test was skipped without naming its probe
// (a message that starts with "probe "): a skip that hides a bug must not pass. It refuses to guess: a line that is
// not an event is printed as it came.
//
// Rejected: gotestsum, which does all but judge skips, and would be one more program to pin and build.
package main
