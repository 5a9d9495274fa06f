// Package task plans the container of one `agentsafectl run`: what the root
// looks like, who the task runs as, what its environment holds.
//
// Two roots exist. PlanHost shows the task the host's own programs (/usr, /opt
// and the /bin and /lib beside them) read-only, over a skeleton that is made for
// this run: an /etc from an allow-list, an empty /var, private /tmp, /run and
// home. PlanRoot takes a root file system that is mounted already (an image, or
// a directory under an overlay).
//
// Data in: a Request (what the caller asked), a Host (what ReadHost found).
// Data out: a Plan, that is an OCI spec and the nodes of the skeleton. PlanHost
// and PlanRoot make no system call; WriteSkeleton makes the nodes.
//
// It refuses: a workspace that is a system directory or that holds the home
// directory (its keys and tokens would be the task's); variables of the caller's
// environment that were not named. Of /etc it shows what is on the list, world
// readable and without a private key; shadow, sudoers, ssh, machine-id and
// everything it has not heard of stay out.
//
// The task on a host root runs as the owner of the workspace, without any
// capability: files it makes belong to whom they should, and a root shell that
// starts a task in a user's folder gives that task no root. A folder of root's
// gives uid 0, without capabilities.
//
// Minimum kernel: 5.15.
//
// Alternatives rejected: binding the host's /etc and masking the secrets (a
// deny-list of files is out of date on the day it is written); running as nobody
// (the task could not edit the workspace).
package task
