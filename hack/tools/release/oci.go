package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	refName       = "org.opencontainers.image.ref.name"
	containerdRef = "io.containerd.image.name" // containerd and Docker give an imported image this name
)

func digest(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// ociLayout is an OCI layout that is being written.
type ociLayout struct {
	layout.Path
	*task
}

// newLayout makes the layout oci/NAME of the release.
func (r *release) newLayout(name string) ociLayout {
	dir := filepath.Join(r.out, "oci", name)
	get(layout.Write(dir, empty.Index))(&r.task)
	return ociLayout{layout.Path(dir), &r.task}
}

func (l ociLayout) add(mediaType types.MediaType, data []byte) v1.Descriptor {
	d := v1.Descriptor{MediaType: mediaType, Size: int64(len(data)), Digest: digest(data)}
	l.ok(l.WriteBlob(d.Digest, io.NopCloser(bytes.NewReader(data))))
	return d
}

func (l ociLayout) addJSON(mediaType types.MediaType, value any) v1.Descriptor {
	return l.add(mediaType, get(json.Marshal(value))(l.task))
}

// addManifest adds a manifest with one layer.
func (l ociLayout) addManifest(config, layer v1.Descriptor, annotations map[string]string) v1.Descriptor {
	return l.addJSON(types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: config, Layers: []v1.Descriptor{layer}, Annotations: annotations,
	})
}

// tag makes the descriptor the layout's entry, with this tag in the repository.
func (l ociLayout) tag(d v1.Descriptor, repository, tag string) {
	d.Annotations = map[string]string{refName: tag, containerdRef: repository + ":" + tag}
	l.ok(l.AppendDescriptor(d))
}
