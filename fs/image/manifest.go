package image

import (
	_ "crypto/sha256" // go-digest only knows the algorithms that are linked in
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// mediaTypeDockerList and its neighbours are Docker's names for what the image
// specification later called index and manifest.
const (
	mediaTypeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	mediaTypeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	annotationImageName     = "io.containerd.image.name"
	maxIndexDepth           = 4
	maxManifests            = 256
)

// Platform is what the image must have been built for.
type Platform struct {
	OS, Architecture string
}

// Layer is one layer of an image in its archive.
type Layer struct {
	DiffID digest.Digest // of the uncompressed bytes
	name   string        // in the archive
	blob   digest.Digest // of the bytes as stored; empty where the format has none
}

// Image is one image of an archive: plain data.
type Image struct {
	Name   string        // as tagged, empty if the archive has none
	ID     digest.Digest // of the configuration
	Config Config
	Layers []Layer // lowest first
}

// candidate is an image that the archive lists, before its parts are read.
type candidate struct {
	names  []string
	config string // entry name
	id     digest.Digest
	layers []Layer // without diff ids
}

// Select returns the archive's image called name, or its only one if name is
// empty. The error lists the names where the choice is not clear.
func (a *Archive) Select(name string, want Platform) (*Image, error) {
	candidates, err := a.candidates(want)
	if err != nil {
		return nil, err
	}
	var known []string
	var chosen []candidate
	for _, c := range candidates {
		known = append(known, c.names...)
		if name == "" || slices.Contains(c.names, name) {
			chosen = append(chosen, c)
		}
	}
	sort.Strings(known)
	switch {
	case len(chosen) == 1:
		return a.load(chosen[0], name, want)
	case len(candidates) == 0:
		return nil, fmt.Errorf("select image: none for %s/%s in this archive", want.OS, want.Architecture)
	case name == "":
		return nil, fmt.Errorf("select image: the archive holds %d, name one of %q", len(candidates), known)
	default:
		return nil, fmt.Errorf("select image %q: the archive holds %q", name, known)
	}
}

func (a *Archive) candidates(want Platform) ([]candidate, error) {
	_, hasIndex := a.entries[v1.ImageIndexFile]
	_, hasManifest := a.entries["manifest.json"]
	switch {
	case hasIndex:
		return a.ociCandidates(want)
	case hasManifest:
		return a.dockerCandidates()
	default:
		return nil, errors.New("select image: neither index.json (OCI layout) nor manifest.json (docker save) in the archive")
	}
}

// dockerCandidates reads manifest.json of `docker save`.
func (a *Archive) dockerCandidates() ([]candidate, error) {
	data, err := a.readSmall("manifest.json")
	if err != nil {
		return nil, err
	}
	var listed []struct {
		Config   string   `json:"Config"`
		RepoTags []string `json:"RepoTags"`
		Layers   []string `json:"Layers"`
	}
	if err := json.Unmarshal(data, &listed); err != nil {
		return nil, fmt.Errorf("parse manifest.json: %w", err)
	}
	if len(listed) > maxManifests {
		return nil, &LimitError{What: "images in manifest.json", Limit: maxManifests}
	}
	var out []candidate
	for i, m := range listed {
		c := candidate{names: m.RepoTags, id: digestFromName(m.Config)}
		if c.config, err = cleanName(m.Config); err != nil {
			return nil, fmt.Errorf("manifest.json[%d].Config: %w", i, err)
		}
		for _, l := range m.Layers {
			name, err := cleanName(l)
			if err != nil {
				return nil, fmt.Errorf("manifest.json[%d].Layers: %w", i, err)
			}
			c.layers = append(c.layers, Layer{name: name, blob: digestFromBlobName(name)})
		}
		out = append(out, c)
	}
	return out, nil
}

// digestFromName returns the digest that docker save puts into the name of a
// configuration: HEX.json, or blobs/sha256/HEX.
func digestFromName(name string) digest.Digest {
	if hex, ok := strings.CutSuffix(path.Base(name), ".json"); ok && isHex64(hex) {
		return digest.NewDigestFromEncoded(digest.SHA256, hex)
	}
	return digestFromBlobName(name)
}

func digestFromBlobName(name string) digest.Digest {
	if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && isHex64(hex) {
		return digest.NewDigestFromEncoded(digest.SHA256, hex)
	}
	return ""
}

func isHex64(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// ociCandidates walks index.json.
func (a *Archive) ociCandidates(want Platform) ([]candidate, error) {
	data, err := a.readSmall(v1.ImageIndexFile)
	if err != nil {
		return nil, err
	}
	w := ociWalk{a: a, want: want, seen: map[digest.Digest]int{}}
	if err := w.index(data, "", 0); err != nil {
		return nil, fmt.Errorf("read index.json: %w", err)
	}
	return w.out, nil
}

type ociWalk struct {
	a    *Archive
	want Platform
	seen map[digest.Digest]int // manifest digest to place in out
	out  []candidate
}

func (w *ociWalk) index(data []byte, name string, depth int) error {
	if depth >= maxIndexDepth {
		return fmt.Errorf("indexes nested deeper than %d", maxIndexDepth)
	}
	var idx v1.Index
	if err := json.Unmarshal(data, &idx); err != nil {
		return fmt.Errorf("parse index: %w", err)
	}
	if len(idx.Manifests) > maxManifests {
		return &LimitError{What: "manifests in an index", Limit: maxManifests}
	}
	for _, d := range idx.Manifests {
		if p := d.Platform; p != nil && (p.OS != w.want.OS || p.Architecture != w.want.Architecture) {
			continue
		}
		if err := w.descriptor(d, refName(d, name), depth); err != nil {
			return fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
	}
	return nil
}

func refName(d v1.Descriptor, outer string) string {
	for _, key := range []string{annotationImageName, v1.AnnotationRefName} {
		if n := d.Annotations[key]; n != "" {
			return n
		}
	}
	return outer
}

func (w *ociWalk) descriptor(d v1.Descriptor, name string, depth int) error {
	if at, ok := w.seen[d.Digest]; ok {
		if name != "" {
			w.out[at].names = append(w.out[at].names, name)
		}
		return nil
	}
	data, err := w.a.readBlob(d.Digest)
	if err != nil {
		return err
	}
	switch d.MediaType {
	case v1.MediaTypeImageIndex, mediaTypeDockerList:
		return w.index(data, name, depth+1)
	case v1.MediaTypeImageManifest, mediaTypeDockerManifest:
	default:
		return nil // a signature or an artifact: not something to run
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("parse manifest: %w", err)
	}
	configName, err := blobName(m.Config.Digest)
	if err != nil {
		return err
	}
	c := candidate{config: configName, id: m.Config.Digest}
	if name != "" {
		c.names = []string{name}
	}
	for _, l := range m.Layers {
		layerName, err := blobName(l.Digest)
		if err != nil {
			return err
		}
		c.layers = append(c.layers, Layer{name: layerName, blob: l.Digest})
	}
	w.seen[d.Digest] = len(w.out)
	w.out = append(w.out, c)
	return nil
}

// blobName returns where an OCI layout keeps a blob. Only SHA-256 is accepted.
func blobName(d digest.Digest) (string, error) {
	hex, ok := strings.CutPrefix(string(d), "sha256:")
	if !ok || !isHex64(hex) {
		return "", fmt.Errorf("digest %q: not sha256", d)
	}
	return "blobs/sha256/" + hex, nil
}

// readBlob returns a metadata blob whose bytes hash to d.
func (a *Archive) readBlob(d digest.Digest) ([]byte, error) {
	name, err := blobName(d)
	if err != nil {
		return nil, err
	}
	data, err := a.readSmall(name)
	if err != nil {
		return nil, err
	}
	if got := digest.SHA256.FromBytes(data); got != d {
		return nil, &DigestError{What: name, Want: d, Got: got}
	}
	return data, nil
}

// load reads the configuration of a candidate and pairs its layers with the
// diff ids.
func (a *Archive) load(c candidate, name string, want Platform) (*Image, error) {
	data, err := a.readSmall(c.config)
	if err != nil {
		return nil, fmt.Errorf("read image configuration: %w", err)
	}
	id := digest.SHA256.FromBytes(data)
	if c.id != "" && c.id != id {
		return nil, &DigestError{What: c.config, Want: c.id, Got: id}
	}
	config, diffIDs, err := parseConfig(data, want)
	if err != nil {
		return nil, fmt.Errorf("image configuration: %w", err)
	}
	if len(diffIDs) != len(c.layers) {
		return nil, fmt.Errorf("image configuration: rootfs.diff_ids has %d entries, the manifest %d layers", len(diffIDs), len(c.layers))
	}
	if len(diffIDs) > a.lim.Layers {
		return nil, &LimitError{What: "layers", Limit: int64(a.lim.Layers)}
	}
	img := &Image{Name: name, ID: id, Config: config}
	if img.Name == "" && len(c.names) > 0 {
		img.Name = c.names[0]
	}
	if !validName(img.Name) {
		img.Name = "" // it would go to terminals and logs
	}
	for i, l := range c.layers {
		l.DiffID = diffIDs[i]
		img.Layers = append(img.Layers, l)
	}
	return img, nil
}

// validName says whether an image name is printable: it comes from the archive.
func validName(name string) bool {
	ok, err := regexp.MatchString(`^[a-zA-Z0-9][a-zA-Z0-9._/:@+-]{0,254}$`, name)
	return ok && err == nil
}

// DigestError says that bytes are not those that were named.
type DigestError struct {
	What      string
	Want, Got digest.Digest
}

func (e *DigestError) Error() string {
	return fmt.Sprintf("%s: digest is %s, expected %s", e.What, e.Got, e.Want)
}
