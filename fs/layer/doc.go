// Package layer keeps what tasks change in their workspaces apart from the host's folders: overlay layers, transactions
// on top of them, undo, and promotion to the host.
//
// Data in: host folders, and upper directories that hostile tasks have filled. Data out: detached mounts that a
// container's first process attaches, lists of changes, changed views, and, when somebody says so, changed host folders.
// All of a container's layers lie in one directory of mode 0700 below /var/lib/agentsafe/layers; its flock serialises
// whoever works on them, and layer.json in it is the truth. What was decided on long ago lies in history.json, so that an exec
// costs the same whether it is the first or the thousandth; a transaction that runs is noted in its own directory, so that
// layer.json is written once for it, when it has ended.
//
// # One live view, transactions above it
//
// A workspace is one overlay for the whole life of its container: lower is the host's folder, upper the layer. Init,
// terminals and health checks work on it. A transaction is a second overlay whose lower is that live view; its upper is
// the exact diff of one exec. When the exec has ended, the diff is compared with the view (nothing is overwritten that
// others have changed), what it replaces is kept in a directory of the same format, and it is applied through the view's
// own mount, file by file, by rename. Undo applies what was kept, redo the diff.
//
// The other construction was tried: transactions sealed as immutable layers, each exec on a flat list of lowers, and the
// view of the container switched to a new overlay at each commit, in constant time. Measured and seen on Linux 6.18:
//
//	                                  live view (chosen)      flat, view switched
//	edits of an exec reach a server   yes, with inotify       not through its working directory or watches
//	database open in the base         one mount, one inode    opens the next file by path on another mount: two
//	                                                          inodes of one file, and corruption
//	terminal in a subdirectory        sees commits            stays on the old view
//	write to a file below, seen       at once                 the old bytes, once they were looked up
//	kernel log                        silent                  a warning for each exec, while the base is mounted
//	work: git status, unpack, rm      1.03 - 1.1 of one       1.0 - 1.05 of one overlay (CPU time)
//	commit                            the cost of the bytes   constant
//	undo                              the cost of the bytes   constant, then another switch of the view
//	stacking                          two overlays            one
//
// A commit that costs its bytes is what a transaction may cost; a database that breaks is not. So the view stays.
//
// Neither construction shares locks or unix sockets between an exec and the base: an overlay has inodes of its own.
// Renaming a directory that lies below answers EXDEV, as on every Docker image; mv copies then.
//
// # Options of the overlays
//
//	metacopy=off      on, a chmod of a large file copies no data; but then a file of the upper directory stands for another
//	                  one, by an attribute that a task's layer could bring along, and a layer is no diff by itself
//	redirect_dir=off  on, directories of the host's folder can be renamed; the same objection
//	index=off         on, hard links of the host's folder stay together; but an upper directory is bound to one lower by
//	                  file handles then, and each file that is copied up costs an entry
//	xino=off          on, inode numbers of two file systems can't collide; ext4 and tmpfs have them 32 bits wide, so that on
//	                  one file system, which is the common case, nothing changes, and no work gets quicker
//	volatile          fsync(2) reaches no disk, which package managers call for each file
//
// None of the ones that are off makes work quicker that does not rename or chmod what lies below.
//
// # Reserved layers
//
// Making a transaction's directories, overlay and mount namespace costs more than all that is decided about it, and taking
// the namespace apart waits for other processors. So a layer can be made before its transaction begins ([Layers.Reserve]):
// an overlay in which nobody has looked up anything is as fresh as a new one. Whoever supervises a container makes the next
// one when an exec has ended.
//
// # Limits
//
// A [Quota] gives the layers of a workspace, transactions and what is kept to take them back included, a file system of
// their own: a sparse image with an ext4 without journal, on a loop device that ends with its last user, mounted detached
// by whoever works on the layers. The task meets ENOSPC, and a commit that has no room leaves the view as it is.
// Tried, on Linux 6.18:
//
//	                                  image (by default)    tmpfs (on request)       project quota
//	what the task meets               ENOSPC                EDQUOT
//	bytes and inodes                  both, exact           both, exact              both
//	needs                             mke2fs, loop devices  nothing                  a store mounted with prjquota: this
//	                                                                                 kernel has no quota format at all
//	costs at the start                mke2fs and a mount    a mount                  two ioctls
//	the layer outlives the container  yes                   not the machine          yes
//	is charged to                     the disk              the task's memory limit  the disk
//	unpacks and deletes many files    as the disk           quicker than the folder
//	                                                        itself on a disk
//
// # In memory
//
// With [WorkspaceOptions.Memory] the file system is a tmpfs, attached in the workspace's directory in the mount namespace of
// whoever makes the container: nothing but a mount keeps a tmpfs, and a process that held one would have to outlive the
// container. The files of such an overlay are numbered by it (xino), because upper and lower have two devices. The state and
// the notes of transactions stay on the disk; after a start of the machine they say what there was, and everything that needs
// the layers is refused with [ErrMemoryGone].
//
// # After a crash or a full disk
//
// An operation that changes a view notes itself in layer.json before its first step and after its last; the commit of an exec
// does so in a mark of its own, which is there before the exec begins: making files is what costs on a disk, and a commit of one
// changed file makes two, what it replaces and what it writes. Applying can be repeated, because what is done already is no
// difference any more; whoever opens the layers next completes it. If that is impossible (the disk is full, the host's folder is read-only) the layers can be looked at and not changed
// until it is; [Layers.Stuck] says why. A commit that fails is taken back, and its transaction kept as failed. The
// overlays are volatile: fsync(2) in a layer does not reach the disk, so that after a power failure [State.Torn] says
// that the layer may lack its last seconds. The host's folder is never concerned.
//
// # Refusals
//
// Folders with mounts beneath them (an overlay does not show them) and folders that overlayfs can't take are refused
// before the container starts, unless the profile has the latter copied. A layer that was tampered with (see package tree) makes its transaction refused, and is
// kept for a look at it. A folder that was replaced since the task began is not written to.
//
// Minimum kernel: 5.15. From 6.15 on a transaction's lower is a detached mount; before, the caller attaches it in a
// mount namespace of its own.
package layer
