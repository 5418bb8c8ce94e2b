package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

type file struct {
	name string
	mode int64
	data []byte
}

// tarGzip returns an archive that depends only on its arguments, and the digest of the archive before compression.
func tarGzip(files []file, modified time.Time) (archive []byte, diffID v1.Hash) {
	files = slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
	var plain, compressed bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, f := range files {
		succeed(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: modified}))
		must(w.Write(f.data))
	}
	succeed(w.Close())
	z := gzip.NewWriter(&compressed)
	must(z.Write(plain.Bytes()))
	succeed(z.Close())
	return compressed.Bytes(), digest(plain.Bytes())
}

// untarGzip returns the files of an archive by their names.
func untarGzip(archive []byte) map[string]file {
	files := map[string]file{}
	for r := tar.NewReader(must(gzip.NewReader(bytes.NewReader(archive)))); ; {
		header, err := r.Next()
		if err == io.EOF {
			return files
		}
		succeed(err)
		files[header.Name] = file{header.Name, header.Mode, must(io.ReadAll(r))}
	}
}
