// Package clock sets the machine's clock back and forward under containers with time limits and evidence, and wants the
// limits to hold and the evidence to be intact.
//
// A clock is the whole machine's, also for a time namespace, which has no clock of the day of its own. So this runs in a
// machine that is thrown away (package vm), where AGENTSAFE_TEST_MACHINE says that it is one, and skips elsewhere.
package clock
