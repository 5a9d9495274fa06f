// Package harness gives every integration test package a machine of its own to break, and two runtimes to compare.
//
// # The box
//
// [Main] is a package's TestMain. It runs the test binary a second time inside new mount and network namespaces: the
// box. Outside stays an observer, which is the subreaper of everything that the box starts; it reaps orphans as init
// would, and when the box is gone it knows exactly what was left behind: processes (its descendants), cgroups (their
// paths carry the box's tag), mounts. Inside, /run is an empty tmpfs and /etc, /opt and /var/lib are overlays, so
// engines and runtimes with their default paths touch nothing of the machine, and several packages run side by side.
// The network has a loopback device and no way out: what needs the network (images, modules) is made in
// [Options].Prepare, outside the box.
//
// # Runtimes
//
// [Peers] are runc and the runtime under test: bin/agentsafe of this repository or, if set, the program that
// AGENTSAFE_TEST_RUNTIME names. A missing program fails the test; it is never skipped. [SideBySide] does one thing
// under both and compares exit code, output and errors.
//
// # What it refuses
//
// The harness never ends a process that it did not start, never uses an engine's default socket, and never looks
// at a registry: images are made here from Debian packages and cached in [CacheDir] by the hash of their recipe.
//
// Needs Linux 5.15, root, and the packages of integration/deps.sh. Rejected: a PID namespace around the box (engines
// on a real host do not live in one, and it would hide what they leave), a container around the tests (nested overlay
// mounts, and the runtime under test would not be the outermost one), and shell scripts with nsenter (nobody reaps).
package harness
