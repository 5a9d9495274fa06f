package image

import "fmt"

// Limits bounds what one archive may make the host read, keep or write. A zero
// field means the value of DefaultLimits.
type Limits struct {
	ArchiveEntries int   // entries of the outer archive
	ArchiveBytes   int64 // bytes of the outer archive once decompressed
	MetadataBytes  int64 // bytes of one JSON document
	Layers         int   // layers of one image
	LayerEntries   int   // entries of one layer
	LayerBytes     int64 // bytes of one layer, uncompressed
}

// DefaultLimits fits every image that the large public registries serve.
func DefaultLimits() Limits {
	return Limits{
		ArchiveEntries: 20_000,
		ArchiveBytes:   64 << 30,
		MetadataBytes:  4 << 20,
		Layers:         96, // what fits in one page of mount options, see OverlayOptions
		LayerEntries:   2_000_000,
		LayerBytes:     32 << 30,
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.ArchiveEntries == 0 {
		l.ArchiveEntries = d.ArchiveEntries
	}
	if l.ArchiveBytes == 0 {
		l.ArchiveBytes = d.ArchiveBytes
	}
	if l.MetadataBytes == 0 {
		l.MetadataBytes = d.MetadataBytes
	}
	if l.Layers == 0 {
		l.Layers = d.Layers
	}
	if l.LayerEntries == 0 {
		l.LayerEntries = d.LayerEntries
	}
	if l.LayerBytes == 0 {
		l.LayerBytes = d.LayerBytes
	}
	return l
}

// LimitError says which limit an archive ran into.
type LimitError struct {
	What  string // what was counted
	Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s: more than %d allowed", e.What, e.Limit)
}
