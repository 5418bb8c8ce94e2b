package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// sink takes files.
type sink interface {
	add(name string, data []byte) error
	close() error
}

// newSink returns what takes files for the target: an archive, a directory, or standard output for "-".
func (o *options) newSink(target string, now time.Time) (sink, error) {
	switch {
	case target == "-":
		return &stream{o.Out}, nil
	case strings.HasSuffix(target, ".tar.gz") || strings.HasSuffix(target, ".tgz"):
		f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("%s exists: name another file", target)
		} else if err != nil {
			return nil, err
		}
		zip := gzip.NewWriter(f)
		root := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(target), ".tar.gz"), ".tgz")
		return &archive{file: f, zip: zip, tar: tar.NewWriter(zip), root: root, now: now}, nil
	}
	if entries, err := os.ReadDir(target); err == nil && len(entries) > 0 {
		return nil, fmt.Errorf("directory %s is not empty: name another", target)
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return nil, err
	}
	return directory(target), nil
}

// stream prints files as YAML documents: those that are YAML as they are, others in a field.
type stream struct{ w io.Writer }

func (s *stream) add(name string, data []byte) error {
	if !strings.HasSuffix(name, ".yaml") {
		var err error
		if data, err = yaml.Marshal(map[string]string{"file": name, "text": string(data)}); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(s.w, "---\n# %s\n%s", name, data)
	return err
}

func (s *stream) close() error { return nil }

// archive is a compressed tar archive.
type archive struct {
	file *os.File
	zip  *gzip.Writer
	tar  *tar.Writer
	root string
	now  time.Time
}

func (a *archive) add(name string, data []byte) error {
	if err := a.tar.WriteHeader(&tar.Header{Name: a.root + "/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: a.now}); err != nil {
		return err
	}
	_, err := a.tar.Write(data)
	return err
}

func (a *archive) close() error { return errors.Join(a.tar.Close(), a.zip.Close(), a.file.Close()) }

// directory is where files are put as they are.
type directory string

func (d directory) add(name string, data []byte) error {
	file := filepath.Join(string(d), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

func (d directory) close() error { return nil }
