package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// object is an object of JSON or YAML. It is written with sorted keys.
type object = map[string]any

// sbom writes NAME.spdx.json: the described package, the binaries that it contains, and their modules.
func (r *release) sbom(name string, described object, binaries []binary) {
	packages := []object{spdxPackage("SPDXRef-Described", described)}
	var relations []object
	relate := func(from, relation, to string) {
		relations = append(relations, object{"spdxElementId": from, "relationshipType": relation, "relatedSpdxElement": to})
	}
	relate("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Described")
	ids := map[module]string{}
	for i, b := range binaries {
		id := fmt.Sprintf("SPDXRef-Binary-%d", i+1)
		packages = append(packages, spdxPackage(id, object{
			"name": b.platform + "/" + b.name, "versionInfo": r.version, "primaryPackagePurpose": "APPLICATION", "checksums": checksums(digest(b.data)),
		}))
		relate("SPDXRef-Described", "CONTAINS", id)
		for _, m := range r.modulesOf(b.data) {
			if ids[m] == "" {
				ids[m] = fmt.Sprintf("SPDXRef-Module-%d", len(ids)+1)
				packages = append(packages, spdxPackage(ids[m], m.spdx()))
			}
			relate(id, "DEPENDS_ON", ids[m])
		}
	}
	r.write(name+".spdx.json", get(json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": r.download("spdx/" + r.revision + "/" + name),
		"creationInfo":      object{"created": r.created.Format(time.RFC3339), "creators": []string{"Tool: make-release"}},
		"packages":          packages, "relationships": relations,
	}, "", " "))(&r.task))
}

// spdxPackage adds to a package what SPDX requires of each.
func spdxPackage(id string, p object) object {
	p["SPDXID"], p["downloadLocation"], p["filesAnalyzed"] = id, "NOASSERTION", false
	return p
}

func checksums(hash v1.Hash) []object {
	return []object{{"algorithm": "SHA256", "checksumValue": hash.Hex}}
}

func packageURL(purl string) []object {
	return []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}}
}

func (r *release) imagePackage(digest v1.Hash, tag string) object {
	purl := "pkg:oci/" + program + "@" + url.QueryEscape(digest.String()) + "?repository_url=" + url.QueryEscape(r.repository()) + "&tag=" + tag
	return object{"name": r.repository(), "versionInfo": tag, "primaryPackagePurpose": "CONTAINER", "checksums": checksums(digest), "externalRefs": packageURL(purl)}
}

// module is a Go module, or Go's standard library. sum is the h1 sum of go.sum, a hash of the files' hashes.
type module struct{ path, version, sum string }

// modulesOf returns the standard library and the modules in a binary, without the main module.
func (t *task) modulesOf(executable []byte) []module {
	info, err := buildinfo.Read(bytes.NewReader(executable))
	if !t.ok(err) {
		return nil
	}
	modules := []module{{"stdlib", strings.Fields(strings.TrimPrefix(info.GoVersion, "go"))[0], ""}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, module{m.Path, m.Version, m.Sum})
	}
	return modules
}

func (m module) spdx() object {
	// The specification of package URLs has Go's paths in lower case.
	purl := "pkg:golang/" + strings.ToLower(m.path) + "@" + url.QueryEscape(m.version)
	return object{"name": m.path, "versionInfo": m.version, "primaryPackagePurpose": "LIBRARY", "comment": m.sum, "externalRefs": packageURL(purl)}
}
