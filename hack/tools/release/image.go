package main

import (
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	imageUser  = "65532:65532"
	entrypoint = "/" + program
)

var platforms = []string{"linux/amd64", "linux/arm64"}

// imageTag returns the tag of the image for a minor version of Kubernetes.
func imageTag(version, minor string) string { return version + "-kubernetes" + minor }

// image writes the image index for a minor version of Kubernetes, and its SBOM. It returns the index's digest.
func (r *release) image(minor string) string {
	name, tag := "kubernetes"+minor, imageTag(r.version, minor)
	l := r.newLayout(name)
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Annotations: r.labels(r.version)}
	var all []binary
	for _, platform := range platforms {
		binaries := []binary{r.readBinary(minor, platform, program), r.readBinary(minor, platform, "pool-priority-controller")}
		index.Manifests = append(index.Manifests, r.platformImage(l, platform, binaries))
		all = append(all, binaries...)
	}
	d := l.addJSON(types.OCIImageIndex, index)
	l.tag(d, r.repository(), tag)
	r.sbom(program+"-"+name, r.imagePackage(d.Digest, tag), all)
	r.signManifest(name, r.repository(), d.Digest)
	return d.Digest.String()
}

// platformImage adds the image for a platform to the layout.
func (r *release) platformImage(l ociLayout, platform string, binaries []binary) v1.Descriptor {
	var files []file
	for _, b := range binaries {
		files = append(files, file{b.name, 0o755, b.data})
	}
	archive, diffID := r.tarGzip(files)
	p, created := &v1.Platform{OS: path.Dir(platform), Architecture: path.Base(platform)}, v1.Time{Time: r.created}
	config := l.addJSON(types.OCIConfigJSON, v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Created: created,
		Config:  v1.Config{User: imageUser, Entrypoint: []string{entrypoint}, WorkingDir: "/", Labels: r.labels(r.version)},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{diffID}},
		History: []v1.History{{Created: created, CreatedBy: "make release"}},
	})
	d := l.addManifest(config, l.add(types.OCILayer, archive), nil)
	d.Platform = p
	return d
}

// labels returns the labels of images, which are also the annotations of indexes and of the chart.
func (r *release) labels(version string) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":    program,
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.revision": r.revision,
	}
	if r.source != "" {
		labels["org.opencontainers.image.source"] = r.source
	}
	return labels
}

// binary is an executable for a platform such as linux/amd64.
type binary struct {
	platform, name string
	data           []byte
}

// readBinary reads DIR/PLATFORM/NAME below the directory of the binaries.
func (r *release) readBinary(dir, platform, name string) binary {
	return binary{platform, name, get(os.ReadFile(filepath.Join(r.binaries, dir, platform, name)))(&r.task)}
}
