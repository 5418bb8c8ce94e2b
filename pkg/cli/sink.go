package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// sink stores the files of a dump. After the last file, the caller must call close.
type sink struct {
	add   func(name string, data []byte) error
	close func() error
}

// newSink returns the sink for the target. The target is an archive, a directory, or "-" for standard output.
func (o *options) newSink(target string, now time.Time) (sink, error) {
	done := func() error { return nil }
	if target == "-" {
		return sink{o.addToStream, done}, nil
	}
	if strings.HasSuffix(target, ".tar.gz") || strings.HasSuffix(target, ".tgz") {
		return newArchive(target, now)
	}
	if entries, err := os.ReadDir(target); err == nil && len(entries) > 0 {
		return sink{}, fmt.Errorf("directory %s is not empty: name another", target)
	}
	add := func(name string, data []byte) error {
		file := filepath.Join(target, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		return os.WriteFile(file, data, 0o600)
	}
	return sink{add, done}, os.MkdirAll(target, 0o700)
}

// addToStream prints a file as a YAML document. If the file is not YAML, its text becomes a field of the document.
func (o *options) addToStream(name string, data []byte) error {
	if !strings.HasSuffix(name, ".yaml") {
		var err error
		if data, err = yaml.Marshal(map[string]string{"file": name, "text": string(data)}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(o.Out, "---\n# %s\n%s", name, data)
	return err
}

// newArchive makes a compressed tar archive.
func newArchive(target string, now time.Time) (sink, error) {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return sink{}, fmt.Errorf("%s exists: name another file", target)
	} else if err != nil {
		return sink{}, err
	}
	compressed := gzip.NewWriter(f)
	archive := tar.NewWriter(compressed)
	root := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(target), ".tar.gz"), ".tgz")
	add := func(name string, data []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: root + "/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: now}); err != nil {
			return err
		}
		_, err := archive.Write(data)
		return err
	}
	return sink{add, func() error { return errors.Join(archive.Close(), compressed.Close(), f.Close()) }}, nil
}
