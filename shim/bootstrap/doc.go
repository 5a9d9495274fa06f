// Package bootstrap is the program around the shim's service, agentsafe-shim:
//
//	(no action)  is the shim itself: it answers at descriptor 3 until its last task is gone
//	delete       cleans up after a shim that was killed, and tells the container's exit status
//	-info        prints what the runtime can do
//	-handler     prints the settings of a runtime handler
//
// containerd does not run it but containerd-shim-agentsafe-v2 (shim/launch), which is small and starts this one. Who lives
// as a shim is given its name by that, so that a list of processes shows which runtime it serves.
//
// It refuses a missing namespace or id, and settings of a handler that it can't read. Minimum kernel: 5.15.
package bootstrap
