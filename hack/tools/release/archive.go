package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

type file struct {
	name string
	mode int64
	data []byte
}

// tarGzip returns an archive that depends only on the files and the commit, and the digest of the archive before
// compression.
func (r *release) tarGzip(files []file) (archive []byte, diffID v1.Hash) {
	files = slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
	var plain, compressed bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, f := range files {
		r.ok(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: r.created}))
		get(w.Write(f.data))(&r.task)
	}
	r.ok(w.Close())
	z := gzip.NewWriter(&compressed)
	get(z.Write(plain.Bytes()))(&r.task)
	r.ok(z.Close())
	return compressed.Bytes(), digest(plain.Bytes())
}

// untarGzip returns the files of an archive by their names.
func (t *task) untarGzip(archive []byte) map[string]file {
	files := map[string]file{}
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if !t.ok(err) {
		return files
	}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if err == io.EOF || !t.ok(err) {
			return files
		}
		files[header.Name] = file{header.Name, header.Mode, get(io.ReadAll(r))(t)}
	}
}
