// Package safepath opens paths beneath a root that somebody hostile controls.
//
// Data in: an open directory and a path that an image, a layer or a container chose. Data out: an open file that is
// certainly beneath the directory, whatever symlinks, `..` and renames do meanwhile. The kernel keeps the promise
// (openat2(2) with RESOLVE_IN_ROOT, Linux 5.6); the package adds no resolution of its own but [Resolve], whose result
// is only a name and must be opened with OpenInRoot again.
//
// Rejected: os.Root refuses absolute and escaping symlinks, which are ordinary in a root file system; OpenatInRoot of
// pathrs-lite costs 75 us for what takes 4.
package safepath
