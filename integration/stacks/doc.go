// Package stacks does with Docker what people do with more than one container, or with one that lives long: a compose
// project of an application, a database and a cache; a devcontainer, entered as an editor does it; images built by the
// classic builder and by buildah; daemons that restart, die, and come back to containers that have gone on.
//
// Each is done under runc and under agentsafe, and must come out the same. It refuses nothing. Data in: the image Stack
// of package harness, and testdata. Needs Debian's engines with docker-compose and buildah, root, Linux 5.15.
//
// Rejected: shell scripts that imitate compose. The real program asks for options that nobody thinks of.
package stacks
