package main

import (
	"crypto/ecdsa"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const sumsFile = "SHA256SUMS"

// isSignature reports whether SHA256SUMS leaves a file out. A release that is built again, without the key, thus has
// the same SHA256SUMS.
func isSignature(name string) bool {
	return name == sumsFile || name == sumsFile+".sig" || strings.HasPrefix(name, "oci/") && strings.Contains(name, ".sig/")
}

// sums returns a line for each file, as sha256sum prints it, sorted by name.
func (t *task) sums(dir fs.FS) string {
	var names []string
	t.ok(fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !isSignature(name) {
			names = append(names, name)
		}
		return err
	}))
	slices.Sort(names)
	var lines strings.Builder
	for _, name := range names {
		fmt.Fprintf(&lines, "%s  %s\n", digest(get(fs.ReadFile(dir, name))(t)).Hex, name)
	}
	return lines.String()
}

// writeSums writes SHA256SUMS, and with a key SHA256SUMS.sig as cosign sign-blob does.
func (t *task) writeSums(dir string, key *ecdsa.PrivateKey) {
	text := []byte(t.sums(os.DirFS(dir)))
	file := filepath.Join(dir, sumsFile)
	t.ok(os.WriteFile(file, text, 0o644))
	if key != nil {
		t.ok(os.WriteFile(file+".sig", []byte(t.sign(key, text)), 0o644))
	}
}
