package main

import (
	"sigs.k8s.io/kustomize/api/krusty"
	kustomize "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// overlays are the directories of manifests/overlays that a release has single-file manifests of.
var overlays = []string{"aks", "aks-observe", "karpenter"}

func manifestName(overlay, minor string) string {
	return "pool-priority-" + overlay + "-kubernetes" + minor + ".yaml"
}

// manifests writes what kubectl kustomize prints for each overlay, with the image for a minor version of Kubernetes.
func (r *release) manifests(minor, digest string) {
	memory := filesys.MakeFsInMemory()
	for _, f := range r.readTree("manifests", "/manifests") {
		r.ok(memory.WriteFile(f.name, f.data))
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // kubectl's order: namespaces first
	for _, overlay := range overlays {
		r.ok(memory.WriteFile("/release/kustomization.yaml", get(yaml.Marshal(kustomize.Kustomization{
			Resources: []string{"../manifests/overlays/" + overlay},
			Images:    []kustomize.Image{{Name: program, NewName: r.repository(), Digest: digest}},
		}))(&r.task)))
		if resources, err := krusty.MakeKustomizer(options).Run(memory, "/release"); r.ok(err) {
			r.write(manifestName(overlay, minor), get(resources.AsYaml())(&r.task))
		}
	}
}
