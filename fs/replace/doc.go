// Package replace writes small files so that whoever reads sees the old content or the new one, never a part, also after a
// crash or on a full disk.
//
// Data in: a directory's handle, a name in it, and the content. Data out: the file. The draft beside it has a fixed name, so
// that a crash leaves at most one, which the next write takes away; callers hold a lock of their own against each other.
// Nothing is followed: a symbolic link at either name is replaced. It does not wait for the disk (fsync): after a power
// failure a container's state is gone with the container.
package replace
