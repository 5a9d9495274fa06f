// Package profiles tests what profiles do to a container, from inside of it: what is hidden, read-only, removed from
// the environment or refused, by the profile that the host chose and by what a spec asks for.
//
// It has no code but tests. It refuses to look at plans: those are the business of package profiles, and a plan that
// does not reach the kernel looks the same there. Needs Linux 5.15 (and 6.2 for profiles that restrict writing) and root.
package profiles
