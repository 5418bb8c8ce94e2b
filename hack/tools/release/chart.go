package main

import (
	"maps"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

const (
	helmConfig types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	helmChart  types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartVersion returns the chart's version and tag. Helm's versions have no v.
func chartVersion(version string) string { return strings.TrimPrefix(version, "v") }

func chartFile(version string) string { return program + "-" + chartVersion(version) + ".tgz" }

// chartRepository differs from the image's, because the chart has the same name.
func chartRepository(registry string) string { return registry + "/charts/" + program }

// chart writes the chart as a .tgz and as an OCI layout. The chart has the digests of the images by minor version.
func (r *release) chart(digests map[string]string) {
	files := r.readTree("charts/"+program, program)
	var metadata []byte
	for i := range files {
		switch f := &files[i]; f.name {
		case program + "/Chart.yaml":
			f.data = r.replaceLine(f.data, "version: .*", "version: "+chartVersion(r.version))
			f.data = r.replaceLine(f.data, "appVersion: .*", "appVersion: "+r.version)
			metadata = get(yaml.YAMLToJSON(f.data))(&r.task)
		case program + "/values.yaml":
			f.data = r.replaceLine(f.data, "  repository: .*", "  repository: "+r.repository())
			r.require(r.parseRepository(f.data) == r.repository(), "values.yaml: the repository is %q after the edit", r.parseRepository(f.data))
		case program + "/files/released":
			for minor, digest := range digests {
				f.data = r.replaceLine(f.data, regexp.QuoteMeta(minor), minor+" "+digest)
			}
			r.require(maps.Equal(parseBuilds(f.data), digests), "files/released is %q after the edit", f.data)
		}
	}
	archive, _ := r.tarGzip(files)
	r.write(chartFile(r.version), archive)
	l := r.newLayout("chart")
	d := l.addManifest(l.add(helmConfig, metadata), l.add(helmChart, archive), r.labels(chartVersion(r.version)))
	l.tag(d, chartRepository(r.registry), chartVersion(r.version))
	r.signManifest("chart", chartRepository(r.registry), d.Digest)
}

// replaceLine replaces the only line that matches the pattern.
func (t *task) replaceLine(text []byte, pattern, replacement string) []byte {
	expression := regexp.MustCompile("(?m)^" + pattern + "$")
	n := len(expression.FindAll(text, -1))
	t.require(n == 1, "the chart has %d lines %q, want 1", n, pattern)
	return expression.ReplaceAll(text, []byte(replacement))
}

// parseRepository returns the image's repository in the chart's values.
func (t *task) parseRepository(data []byte) string {
	var values struct{ Image struct{ Repository string } }
	t.ok(yaml.Unmarshal(data, &values))
	return values.Image.Repository
}

// parseBuilds returns the digests in files/released, by minor version of Kubernetes.
func parseBuilds(data []byte) map[string]string {
	builds := map[string]string{}
	for line := range strings.Lines(string(data)) {
		minor, digest, _ := strings.Cut(strings.TrimSpace(line), " ")
		builds[minor] = digest
	}
	return builds
}
