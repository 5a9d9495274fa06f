// Package image reads a container image out of one tar file and unpacks its
// layers into a cache, so that a task can run on an image with no engine
// installed.
//
// Two formats are read: what `docker save` writes (manifest.json) and an OCI
// image layout (index.json). Where a file holds both, the OCI half is used,
// because there every object is named by its digest.
//
// Data in: an untrusted tar file. Nothing in it is believed. The outer archive
// is only ever indexed (name to offset), never extracted, so its names can't
// reach a path. Every blob named by a digest is hashed, and every layer's
// uncompressed bytes must hash to the diff id of the configuration; a layer
// enters the cache under that diff id only after its last byte was checked.
// Sizes, counts and lengths have limits (Limits), because compressed input can
// be a thousand times larger than it looks.
//
// Data out: Image, which is plain data; and directories beneath the cache, one
// per layer, in overlayfs form (whiteouts as 0:0 character devices, opaque
// directories as trusted.overlay.opaque). OverlayOptions turns them into the
// options of one overlay mount. The package does not mount.
//
// It refuses: `..` in names, absent or wrong digests, duplicate names in the
// outer archive, trusted.overlay.* and user.overlay.* attributes (they would
// redirect a lookup to other files of the host), an image of another
// architecture. Device nodes in layers are left out and counted: the runtime
// makes the devices that a container gets. Labels, volumes and ports of the
// configuration are not read at all: an image must not be able to ask the host
// for anything.
//
// Minimum kernel: 5.15 (openat2, overlayfs). Unpacking needs CAP_CHOWN,
// CAP_MKNOD (whiteouts) and CAP_SYS_ADMIN (trusted attributes).
//
// Alternatives rejected: an extractor of our own (containerd's archive.Apply is
// the same work with ten years of fixed bugs; it gets a strict header filter in
// front); umoci and containers/image (they bring a registry client along);
// merging all layers into one directory (shares nothing between images).
package image
