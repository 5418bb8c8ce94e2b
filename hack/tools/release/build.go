package main

import (
	"crypto/ecdsa"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// program is the name of the image, of the chart and of the scheduler's binary.
const program = "pool-priority-scheduler"

type release struct {
	task
	version, registry, downloads, source, revision string
	created                                        time.Time
	tree, binaries, out                            string
	key                                            *ecdsa.PrivateKey // nil: do not sign
}

// build writes the release into a directory beside r.out. It renames the directory when it is complete.
func (r *release) build() error {
	final := filepath.Clean(r.out)
	old, _ := os.ReadDir(final)
	if !r.require(len(old) == 0, "%s is not empty: remove it, or choose another directory", final) {
		return r.err
	}
	r.out = final + ".new"
	r.ok(os.RemoveAll(r.out))
	r.ok(os.MkdirAll(r.out, 0o755))
	digests := map[string]string{}
	minors := get(os.ReadFile(filepath.Join(r.tree, "hack/kubernetes/released")))(&r.task)
	for _, minor := range strings.Fields(string(minors)) {
		digests[minor] = r.image(minor)
		r.manifests(minor, digests[minor])
		r.printf("Kubernetes %s: %s@%s", minor, r.repository(), digests[minor])
	}
	r.chart(digests)
	r.plugin()
	r.writeSums(r.out, r.key)
	if r.err == nil && r.ok(os.RemoveAll(final)) {
		r.ok(os.Rename(r.out, final))
	}
	r.printf("%s has the release %s", final, r.version)
	return r.err
}

func (r *release) repository() string { return r.registry + "/" + program }

// download returns the URL that a file of the release will have.
func (r *release) download(name string) string {
	return strings.TrimSuffix(r.downloads, "/") + "/" + r.version + "/" + name
}

func (r *release) write(name string, data []byte) {
	r.ok(os.WriteFile(filepath.Join(r.out, name), data, 0o644))
}

// readTree returns the files of the repository below a directory of the source tree. Their names begin with prefix.
func (r *release) readTree(dir, prefix string) (files []file) {
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = filepath.Join(r.tree, dir)
	for name := range strings.SplitSeq(strings.TrimRight(string(get(list.Output())(&r.task)), "\x00"), "\x00") {
		files = append(files, file{path.Join(prefix, name), 0o644, get(os.ReadFile(filepath.Join(list.Dir, name)))(&r.task)})
	}
	return files
}
