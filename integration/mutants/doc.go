// Package mutants takes one defence at a time out of the runtime and wants the test of the attack it stands against to
// fail: an attack test that passes on a build without the defence proves nothing.
//
// The source stays as it is. A mutant is built with go build -overlay from a copy of one file in which one piece of text
// is exchanged, so production code has no branch for tests. The long run (AGENTSAFE_TEST_LONG=1) builds and attacks them
// all; the short one checks that each piece of text and each test is still there.
//
// It refuses nothing. Data in: this repository's source. Needs what integration/attacks needs.
//
// Rejected: build tags in production files; a mutation tool, whose random changes say nothing about a named attack.
package mutants
