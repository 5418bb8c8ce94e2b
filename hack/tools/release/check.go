package main

import (
	"crypto/ecdsa"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"
)

// checker reads a release. Its methods print a line for each thing that they verified.
type checker struct {
	task
	fs.FS
	key *ecdsa.PublicKey // nil: signatures are not verified

	version, registry string
	digests           map[string]string // of the images, by minor version of Kubernetes
}

// check verifies the release in a directory, and returns the first error.
func check(stdout io.Writer, dir, key string) error {
	c := &checker{task: task{stdout: stdout}, FS: os.DirFS(dir)}
	if key != "" {
		c.key = c.readPublicKey(key)
	}
	c.checkSums()
	c.checkChart()
	c.checkImages()
	c.checkManifests()
	c.checkPlugin()
	return c.err
}

func (c *checker) read(name string) []byte { return get(fs.ReadFile(c, name))(&c.task) }

// checkSums compares SHA256SUMS with all files, so that no file is missing, changed or added.
func (c *checker) checkSums() {
	text := c.read(sumsFile)
	want, have := strings.SplitAfter(string(text), "\n"), strings.SplitAfter(c.sums(c), "\n")
	for _, line := range slices.Concat(want, have) {
		c.require(slices.Contains(want, line) && slices.Contains(have, line), "%s and the files differ: %s", sumsFile, strings.TrimSpace(line))
	}
	c.printf("%s: %d files have their sums, and there is no other file", sumsFile, len(have)-1)
	if c.key == nil {
		c.printf("signatures: NOT VERIFIED, because there is no public key")
		return
	}
	c.require(isSigned(c.key, text, string(c.read(sumsFile+".sig"))), "%s.sig is not a signature by this key", sumsFile)
	c.printf("%s.sig: signed by this key", sumsFile)
}

// checkChart reads the version, the registry and the digests from the chart. It compares the .tgz with the layout.
func (c *checker) checkChart() {
	name := only(&c.task, "charts", get(fs.Glob(c, program+"-*.tgz"))(&c.task))
	archive := c.read(name)
	files := c.untarGzip(archive)
	var metadata struct{ Name, Version, AppVersion string }
	c.ok(yaml.Unmarshal(files[program+"/Chart.yaml"].data, &metadata))
	c.version, c.digests = metadata.AppVersion, parseBuilds(files[program+"/files/released"].data)
	c.registry = strings.TrimSuffix(c.parseRepository(files[program+"/values.yaml"].data), "/"+program)
	c.require(metadata.Version == chartVersion(c.version) && name == chartFile(c.version) && len(c.digests) > 0,
		"%s: version %q, appVersion %q, %d digests", name, metadata.Version, c.version, len(c.digests))
	repository := chartRepository(c.registry)
	d := c.checkLayout("chart", repository, metadata.Version)
	m := readJSON[v1.Manifest](c, "chart", d)
	layer := only(&c.task, "layers of oci/chart", m.Layers)
	c.require(m.Config.MediaType == helmConfig && layer.MediaType == helmChart && layer.Digest == digest(archive), "oci/chart does not hold %s", name)
	c.printf("%s: version %s, the same as in oci/chart", name, c.version)
	c.checkSignature("chart", repository, d.Digest)
}

// checkImages compares the layouts with the chart's digests, and the SBOMs with the binaries in the layouts.
func (c *checker) checkImages() {
	layouts := get(fs.Glob(c, "oci/kubernetes*"))(&c.task)
	layouts = slices.DeleteFunc(layouts, func(name string) bool { return strings.HasSuffix(name, ".sig") })
	c.require(len(layouts) == len(c.digests), "the chart has %d digests, and there are %d images", len(c.digests), len(layouts))
	for _, minor := range slices.Sorted(maps.Keys(c.digests)) {
		name, repository := "kubernetes"+minor, c.registry+"/"+program
		d := c.checkLayout(name, repository, imageTag(c.version, minor))
		c.require(d.Digest.String() == c.digests[minor], "oci/%s has the index %s, and the chart has %s", name, d.Digest, c.digests[minor])
		c.printf("oci/%s: its index %s is the chart's", name, d.Digest)
		c.checkSBOM(program+"-"+name, c.checkPlatforms(name, d))
		c.checkSignature(name, repository, d.Digest)
	}
}

// checkPlatforms checks the images of an index, and returns their binaries.
func (c *checker) checkPlatforms(layout string, index v1.Descriptor) (binaries []binary) {
	var have []string
	for _, d := range readJSON[v1.IndexManifest](c, layout, index).Manifests {
		manifest := readJSON[v1.Manifest](c, layout, d)
		config := readJSON[v1.ConfigFile](c, layout, manifest.Config)
		platform := config.OS + "/" + config.Architecture
		c.require(d.Platform != nil && d.Platform.String() == platform, "oci/%s: the index has %v for %s", layout, d.Platform, platform)
		c.require(config.Config.User == imageUser && slices.Equal(config.Config.Entrypoint, []string{entrypoint}),
			"oci/%s, %s: user %q, entrypoint %q", layout, platform, config.Config.User, config.Config.Entrypoint)
		files := c.untarGzip(c.readBlob(layout, only(&c.task, "layers of oci/"+layout, manifest.Layers)))
		for _, name := range slices.Sorted(maps.Keys(files)) {
			c.require(files[name].mode == 0o755, "oci/%s, %s: %s has mode %o", layout, platform, name, files[name].mode)
			binaries = append(binaries, binary{platform, name, files[name].data})
		}
		have = append(have, platform)
	}
	c.require(slices.Equal(have, platforms), "oci/%s is for %v, want %v", layout, have, platforms)
	return binaries
}

var imageLine = regexp.MustCompile(`(?m)^ +(?:- )?image: (.*)$`)

// checkManifests compares the images that the manifests name with the digests.
func (c *checker) checkManifests() {
	for _, minor := range slices.Sorted(maps.Keys(c.digests)) {
		want := c.registry + "/" + program + "@" + c.digests[minor]
		for _, overlay := range overlays {
			name := manifestName(overlay, minor)
			images := imageLine.FindAllStringSubmatch(string(c.read(name)), -1)
			c.require(len(images) > 0, "%s has no image", name)
			for _, image := range images {
				c.require(image[1] == want, "%s has the image %s, want %s", name, image[1], want)
			}
			c.printf("%s: %d times the image of oci/kubernetes%s, and no other", name, len(images), minor)
		}
	}
}

// checkPlugin compares krew's manifest and the SBOM with the archives of kubectl-pools.
func (c *checker) checkPlugin() {
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	c.ok(yaml.Unmarshal(c.read("pools.yaml"), &manifest))
	c.require(manifest.Spec.Version == c.version, "pools.yaml has version %s, want %s", manifest.Spec.Version, c.version)
	var binaries []binary
	for _, p := range manifest.Spec.Platforms {
		name, labels := path.Base(p.URI), p.Selector.MatchLabels
		archive := c.read(name)
		c.require(p.SHA256 == digest(archive).Hex, "pools.yaml has another sum for %s", name)
		executable := c.untarGzip(archive)[p.Bin]
		c.require(executable.mode == 0o755, "%s has no executable %s", name, p.Bin)
		binaries = append(binaries, binary{labels["os"] + "/" + labels["arch"], p.Bin, executable.data})
		c.printf("%s: has the sum that pools.yaml has", name)
	}
	c.require(len(binaries) == len(pluginPlatforms), "pools.yaml has %d platforms, want %d", len(binaries), len(pluginPlatforms))
	c.checkSBOM(plugin, binaries)
}

// checkSBOM verifies that NAME.spdx.json lists the binaries, with their sums, and their modules.
func (c *checker) checkSBOM(name string, binaries []binary) {
	var document struct {
		SPDXVersion string
		Packages    []struct {
			Name, VersionInfo, Comment string
			Checksums                  []struct{ ChecksumValue string }
		}
	}
	c.ok(json.Unmarshal(c.read(name+".spdx.json"), &document))
	c.require(document.SPDXVersion == "SPDX-2.3", "%s.spdx.json has version %q, want SPDX-2.3", name, document.SPDXVersion)
	listed := map[module]bool{}
	for _, p := range document.Packages {
		listed[module{p.Name, p.VersionInfo, p.Comment}] = true
		for _, sum := range p.Checksums {
			listed[module{p.Name, p.VersionInfo, sum.ChecksumValue}] = true
		}
	}
	used := map[module]bool{}
	for _, b := range binaries {
		c.require(listed[module{b.platform + "/" + b.name, c.version, digest(b.data).Hex}], "%s.spdx.json does not list %s/%s", name, b.platform, b.name)
		for _, m := range c.modulesOf(b.data) {
			c.require(listed[m], "%s.spdx.json does not list %s %s of %s/%s", name, m.path, m.version, b.platform, b.name)
			used[m] = true
		}
	}
	c.printf("%s.spdx.json: lists %d binaries, and their %d modules", name, len(binaries), len(used))
}
