package main

import (
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const plugin = "kubectl-pools"

var pluginPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// plugin writes the archives of kubectl-pools, krew's manifest of them, and their SBOM.
func (r *release) plugin() {
	license := file{"LICENSE", 0o644, get(os.ReadFile(filepath.Join(r.tree, "LICENSE")))(&r.task)}
	var archives []any
	var all []binary
	for _, platform := range pluginPlatforms {
		b := r.readBinary("plugin", platform, plugin)
		all = append(all, b)
		archive, _ := r.tarGzip([]file{license, {plugin, 0o755, b.data}})
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
	r.write("pools.yaml", get(yaml.Marshal(object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": object{"name": strings.TrimPrefix(plugin, "kubectl-")}, "spec": spec,
	}))(&r.task))
	r.sbom(plugin, object{"name": plugin, "versionInfo": r.version, "primaryPackagePurpose": "APPLICATION"}, all)
}
