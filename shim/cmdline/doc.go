// Package cmdline reads the command line that containerd gives a shim.
//
// Data in: the arguments, and the program's name, which may carry a profile. Data out: [Line], with a namespace and an id
// that can be files' names. It refuses unknown flags, and a missing or impossible namespace or id. Minimum kernel: none.
package cmdline
