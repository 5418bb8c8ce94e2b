package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	suites      = "suites"  // the folder of the module in which the go command sees the copies
	copiesDir   = "_copies" // the go command ignores directories that begin with _
	perf        = "scheduler_perf"
	overlayFile = "overlay.json"
	ours        = "poolpriority.dev/scheduler/test/upstream/"
)

// imports replaces the copies' imports, so that they use one another and our package scheduler.
var imports = strings.NewReplacer(
	`"k8s.io/kubernetes/pkg/scheduler"`, `"`+ours+`scheduler"`,
	`"k8s.io/kubernetes/test/integration/util"`, `"`+ours+suites+`/util"`,
	`"k8s.io/kubernetes/test/integration/scheduler`, `"`+ours+suites+`/scheduler`,
)

// fit has the changes of a file.
type fit struct {
	File    string   `json:"file"`
	Minor   string   `json:"minor"` // the only version of Kubernetes with the file; empty: all have it
	Tests   []string `json:"tests"`
	Why     string   `json:"why"`
	Replace []struct {
		Old string `json:"old"` // must be in the file
		New string `json:"new"`
	} `json:"replace"`
}

// copySuites copies the scheduler's integration tests, scheduler_perf and the packages in util, which they use, to a
// folder in work. It writes the overlay through which the go command finds the copies, and returns the packages that
// start etcd in main_test.go. In 1.36, scheduler/podgroup/admission does not, and so its tests of the API server cannot
// run.
func copySuites(kubernetes, work string) ([]string, error) {
	integration := filepath.Join(kubernetes, "test/integration")
	fits, err := readFits("fitted.yaml", kubernetes)
	if err != nil {
		return nil, err
	}
	copies := filepath.Join(work, copiesDir)
	if err := os.RemoveAll(copies); err != nil {
		return nil, err
	}
	overlay := map[string]string{}
	var packages []string
	for _, folder := range []string{"util", "scheduler", perf} {
		err := filepath.WalkDir(filepath.Join(integration, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" && filepath.Ext(path) != ".yaml" {
				return err
			}
			name, err := filepath.Rel(integration, path)
			if err != nil {
				return err
			}
			if filepath.Base(name) == "main_test.go" {
				packages = append(packages, filepath.Dir(name))
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text, err := fits.apply(name, string(data))
			if err != nil {
				return err
			}
			target := filepath.Join(copies, name)
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			seen, err := filepath.Abs(filepath.Join(suites, name))
			overlay[seen] = target
			if err != nil {
				return err
			}
			return os.WriteFile(target, []byte(imports.Replace(text)), 0o600)
		})
		if err != nil {
			return nil, fmt.Errorf("copying the tests of the module k8s.io/kubernetes: %w", err)
		}
	}
	if err := fits.unused(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	return packages, os.WriteFile(filepath.Join(work, overlayFile), data, 0o600)
}

type fitting struct {
	fits []fit
	used map[string]bool
}

// readFits reads the changes for the version of the module k8s.io/kubernetes in a directory.
func readFits(file, kubernetes string) (*fitting, error) {
	f := &fitting{used: map[string]bool{}}
	if err := readYAML(file, &f.fits, yaml.DisallowUnknownFields); err != nil {
		return nil, err
	}
	f.fits = slices.DeleteFunc(f.fits, func(f fit) bool { return f.Minor != "" && !strings.Contains(kubernetes, "@v"+f.Minor+".") })
	return f, nil
}

// readYAML reads a file.
func readYAML(file string, into any, options ...yaml.JSONOpt) error {
	data, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(data, into, options...)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	return nil
}

// apply returns the file's text with its changes. It fails if a text to replace is not in the file.
func (f *fitting) apply(file, text string) (string, error) {
	for _, fit := range f.fits {
		if fit.File != file {
			continue
		}
		f.used[file] = true
		for _, r := range fit.Replace {
			if !strings.Contains(text, r.Old) {
				return "", fmt.Errorf("%s does not have what fitted.yaml replaces:\n%s", file, r.Old)
			}
			text = strings.ReplaceAll(text, r.Old, r.New)
		}
	}
	return text, nil
}

// unused returns an error if a file with changes does not exist.
func (f *fitting) unused() error {
	for _, fit := range f.fits {
		if !f.used[fit.File] {
			return fmt.Errorf("fitted.yaml changes %s, which there is none", fit.File)
		}
	}
	return nil
}
