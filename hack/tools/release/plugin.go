package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const plugin = "kubectl-pools"

var pluginPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// plugin writes the archives of kubectl-pools, krew's manifest of them, and their SBOM.
func (r release) plugin() {
	var common []file
	if license, err := os.ReadFile(filepath.Join(r.tree, "LICENSE")); !errors.Is(err, fs.ErrNotExist) {
		common = []file{{"LICENSE", 0o644, must(license, err)}}
	}
	var archives []any
	var all []binary
	for _, platform := range pluginPlatforms {
		b := readBinaries(filepath.Join(r.binaries, "plugin"), platform, plugin)[0]
		all = append(all, b)
		archive, _ := tarGzip(append(common, file{plugin, 0o755, b.data}), r.created)
		name := plugin + "-" + strings.ReplaceAll(platform, "/", "-") + ".tar.gz"
		r.write(name, archive)
		archives = append(archives, object{
			"uri": r.download(name), "sha256": digest(archive).Hex, "bin": plugin,
			"selector": object{"matchLabels": object{"os": path.Dir(platform), "arch": path.Base(platform)}},
		})
	}
	spec := object{
		"version":          r.version,
		"shortDescription": "Show what the pool-priority scheduler decides",
		"description":      "Shows the pools of the pool-priority scheduler, what it decides for pods, and why.",
		"platforms":        archives,
	}
	if r.source != "" {
		spec["homepage"] = r.source
	}
	r.write("pools.yaml", must(yaml.Marshal(object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": object{"name": strings.TrimPrefix(plugin, "kubectl-")}, "spec": spec,
	})))
	r.sbom(plugin, object{"name": plugin, "versionInfo": r.version, "primaryPackagePurpose": "APPLICATION"}, all)
}
