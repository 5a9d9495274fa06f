package image

import (
	"fmt"
	"strings"

	"github.com/agentsafe/agentsafe/fs/rootfs"
)

// maxMountOptions is what mount(2) reads of its data argument: one page, with
// the closing NUL.
const maxMountOptions = 4095

// OverlayOptions returns the options of an overlay mount of the layers (lowest
// first, as Unpack returns them) beneath a writable upper directory. No
// attribute in a layer or in the upper redirects to another file:
// redirect_dir=off, metacopy=off. Source: overlayfs.rst, "Redirects" and
// "Metadata only copy up".
func OverlayOptions(layers []string, upper, work string) ([]string, error) {
	if len(layers) == 0 {
		return nil, fmt.Errorf("plan overlay: image without layers")
	}
	lower := make([]string, len(layers))
	for i, l := range layers {
		lower[len(layers)-1-i] = l // overlayfs wants the topmost first
	}
	for _, p := range append([]string{upper, work}, lower...) {
		if strings.ContainsAny(p, ",:\\") {
			return nil, fmt.Errorf("plan overlay: path %q has a character that overlayfs takes for its own", p)
		}
	}
	options := []string{
		"lowerdir=" + strings.Join(lower, ":"), "upperdir=" + upper, "workdir=" + work,
		"redirect_dir=off", "metacopy=off", "index=off", "xino=off",
	}
	if rootfs.InUserNamespace() {
		// As rootfs.Overlay: no trusted.* attributes there.
		options[3] = "redirect_dir=nofollow"
		options = append(options, "userxattr")
	}
	if n := len(strings.Join(options, ",")); n > maxMountOptions {
		return nil, fmt.Errorf("plan overlay: %d layers need %d bytes of mount options, the kernel takes %d", len(layers), n, maxMountOptions)
	}
	return options, nil
}
