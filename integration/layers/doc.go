// Package layers tests overlaid workspaces, transactions, undo and promotion through real runtimes and engines: the bare
// command line, agentsafectl run, Docker and containerd. It drives programs and looks at folders of the host.
package layers
