package main

import (
	"encoding/json"
	"io/fs"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// readBlob reads a blob, and compares its size and digest with the descriptor.
func (c *checker) readBlob(layout string, d v1.Descriptor) []byte {
	data := c.read("oci/" + layout + "/blobs/sha256/" + d.Digest.Hex)
	c.require(int64(len(data)) == d.Size && digest(data) == d.Digest, "oci/%s: the blob %s has another size or digest", layout, d.Digest)
	return data
}

func readJSON[T any](c *checker, layout string, d v1.Descriptor) (value T) {
	c.ok(json.Unmarshal(c.readBlob(layout, d), &value))
	return value
}

// checkLayout verifies that the layout oci/NAME has one entry, with this tag, and no other blobs than those that it
// refers to. It returns the entry.
func (c *checker) checkLayout(name, repository, tag string) v1.Descriptor {
	dir := "oci/" + name
	var index v1.IndexManifest
	c.ok(json.Unmarshal(c.read(dir+"/index.json"), &index))
	d := only(&c.task, "entries of "+dir, index.Manifests)
	c.require(d.Annotations[refName] == tag && d.Annotations[containerdRef] == repository+":"+tag,
		"%s is tagged %v, want %s:%s", dir, d.Annotations, repository, tag)
	reached, next := map[string]bool{}, []v1.Descriptor{d}
	for len(next) > 0 {
		d := next[0]
		next = next[1:]
		reached[dir+"/blobs/sha256/"+d.Digest.Hex] = true
		if d.MediaType.IsIndex() || d.MediaType.IsImage() {
			manifest := readJSON[struct {
				Config            v1.Descriptor
				Manifests, Layers []v1.Descriptor
			}](c, name, d)
			next = slices.Concat(next, manifest.Manifests, manifest.Layers)
			if d.MediaType.IsImage() {
				next = append(next, manifest.Config)
			}
		} else {
			c.readBlob(name, d)
		}
	}
	for _, blob := range get(fs.Glob(c, dir+"/blobs/sha256/*"))(&c.task) {
		c.require(reached[blob], "%s is not part of %s:%s", blob, repository, tag)
	}
	c.printf("%s: %s:%s, all %d blobs have their digests", dir, repository, tag, len(reached))
	return d
}

// checkSignature verifies the signature of a manifest in the layout oci/NAME.sig, if there is a key.
func (c *checker) checkSignature(name, repository string, signed v1.Hash) {
	if c.key == nil {
		return
	}
	layout := name + ".sig"
	manifest := readJSON[v1.Manifest](c, layout, c.checkLayout(layout, repository, signatureTag(signed)))
	layer := only(&c.task, "layers of oci/"+layout, manifest.Layers)
	c.require(layer.MediaType == simpleSigning, "oci/%s is not a signature of cosign", layout)
	data := c.readBlob(layout, layer)
	c.require(string(data) == string(payload(repository, signed)), "oci/%s is the signature of %s", layout, data)
	c.require(isSigned(c.key, data, layer.Annotations[signatureAnnotation]), "oci/%s is not a signature by this key", layout)
	c.printf("oci/%s: %s@%s is signed by this key", layout, repository, signed)
}
