// Package bundle is what a shim leaves in a container's bundle for those who come after it: the program that containerd runs
// to clean up, and a shim that has to do so.
//
// Data in and out: small files of JSON, in a directory that is the engine's and that nobody else can enter. A file that
// isn't there is no error, since a shim that was killed early wrote nothing; a damaged one is. Minimum kernel: none.
package bundle
