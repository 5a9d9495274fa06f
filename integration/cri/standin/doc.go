// Standin is the programs of the images that CRI's conformance tests want, in one: what it does depends on the name it
// is called by.
//
//	pause   waits for a signal
//	nginx   a web server on port 80, or PORT: answers every path with a page, writes /var/run/nginx.pid
//	httpd   the same, and it logs a line for each request, as well as one when it starts
//	nnp     prints its effective uid; it is set-uid root in the image
//	ipcs    lists the segments of shared memory (Debian's busybox has no such applet)
//	pgrep   lists processes by name (likewise)
//
// It refuses every other name. Linux 5.15. Rejected: the images of the Kubernetes project, which need a registry.
package main
