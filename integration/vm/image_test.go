package vm

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestModuleOrder(t *testing.T) {
	dir := t.TempDir()
	text := "k/crc.ko:\nk/ext4.ko: k/jbd2.ko k/mbcache.ko k/crc.ko\nk/jbd2.ko: k/crc.ko\nk/mbcache.ko:\nk/virtio_blk.ko: k/virtio.ko\nk/virtio.ko:\n"
	for name, data := range map[string]string{"modules.dep": text, "modules.builtin": "k/virtio_pci.ko\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := moduleOrder(dir, []string{"virtio_pci", "virtio_blk", "ext4"})
	want := []string{"k/virtio.ko", "k/virtio_blk.ko", "k/crc.ko", "k/mbcache.ko", "k/jbd2.ko", "k/ext4.ko"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := moduleOrder(dir, []string{"absent"}); err == nil {
		t.Error("no error for a module that is not there")
	}
}
