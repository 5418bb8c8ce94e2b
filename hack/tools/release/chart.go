package main

import (
	"encoding/json"
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
func (r release) chart(digests map[string]string) {
	files := r.readTree("charts/"+program, program)
	var metadata []byte
	for i := range files {
		switch f := &files[i]; f.name {
		case program + "/Chart.yaml":
			f.data = replaceLine(f.data, "version: .*", "version: "+chartVersion(r.version))
			f.data = replaceLine(f.data, "appVersion: .*", "appVersion: "+r.version)
			metadata = must(yaml.YAMLToJSON(f.data))
		case program + "/values.yaml":
			f.data = replaceLine(f.data, "  repository: .*", "  repository: "+r.repository())
			f.data = replaceLine(f.data, `  digests: \{\}( *#.*)?`, "  digests: "+string(must(json.Marshal(digests)))+"$1")
			image := parseValues(f.data).Image
			require(image.Repository == r.repository() && maps.Equal(image.Digests, digests), "values.yaml: image is %+v after the edit", image)
		}
	}
	archive, _ := tarGzip(files, r.created)
	r.write(chartFile(r.version), archive)
	l := r.newLayout("chart")
	d := l.addManifest(l.add(helmConfig, metadata), l.add(helmChart, archive), r.labels(chartVersion(r.version)))
	l.tag(d, chartRepository(r.registry), chartVersion(r.version))
	r.signManifest("chart", chartRepository(r.registry), d.Digest)
}

// replaceLine replaces the only line that matches the pattern.
func replaceLine(text []byte, pattern, replacement string) []byte {
	expression := regexp.MustCompile("(?m)^" + pattern + "$")
	n := len(expression.FindAll(text, -1))
	require(n == 1, "the chart has %d lines %q, want 1", n, pattern)
	return expression.ReplaceAll(text, []byte(replacement))
}

type chartValues struct {
	Image struct {
		Repository string
		Digests    map[string]string
	}
}

func parseValues(data []byte) (values chartValues) {
	succeed(yaml.Unmarshal(data, &values))
	return values
}
