package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	noError(t, err)
	return string(data)
}

// newKey writes a pair of keys as cosign generate-key-pair does.
func newKey(t *testing.T, pemType string) (private, public string) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	write := func(name, pemType string, data []byte) string {
		file := filepath.Join(dir, name)
		noError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: data}), 0o600))
		return file
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	noError(t, err)
	sealed, err := encrypted.Encrypt(der, []byte("secret"))
	noError(t, err)
	der, err = x509.MarshalPKIXPublicKey(&key.PublicKey)
	noError(t, err)
	return write("cosign.key", pemType, sealed), write("cosign.pub", "PUBLIC KEY", der)
}

// newTree copies what a release takes from the tree.
func newTree(t *testing.T) string {
	tree := t.TempDir()
	for _, dir := range []string{"charts", "manifests", "hack/kubernetes"} {
		noError(t, os.CopyFS(filepath.Join(tree, dir), os.DirFS(filepath.Join(root, dir))))
	}
	noError(t, os.WriteFile(filepath.Join(tree, "LICENSE"), []byte("anything"), 0o644))
	noError(t, exec.Command("git", "-C", tree, "init", "--quiet").Run())
	return tree
}

// newBinaries lays out a small program as the binaries of a release.
func newBinaries(t *testing.T) string {
	dir := t.TempDir()
	for _, platform := range pluginPlatforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		built := filepath.Join(dir, "plugin", platform, plugin)
		command := exec.Command("go", "build", "-o", built, "./testdata/program")
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		data := []byte(read(t, built))
		for _, minor := range []string{"1.35", "1.36", "1.37"} {
			for _, name := range []string{program, "pool-priority-controller"} {
				file := filepath.Join(dir, minor, platform, name)
				noError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				noError(t, os.WriteFile(file, data, 0o755))
			}
		}
	}
	return dir
}

func write(tree, binaries, out string, more ...string) error {
	return run(append([]string{
		"build", "-version", "v1.2.3", "-registry", "registry.example.com/team", "-downloads", "https://downloads.example.com/pool-priority",
		"-revision", "0123456789abcdef", "-created", "1700000000", "-tree", tree, "-binaries", binaries, "-out", out,
	}, more...), new(bytes.Buffer))
}

// TestRelease writes a release twice, signs one of them, and checks what is changed afterwards.
func TestRelease(t *testing.T) {
	binaries := newBinaries(t)
	signed, unsigned := filepath.Join(t.TempDir(), "signed"), filepath.Join(t.TempDir(), "unsigned")
	private, public := newKey(t, "ENCRYPTED SIGSTORE PRIVATE KEY")
	_, anotherKey := newKey(t, "ENCRYPTED SIGSTORE PRIVATE KEY")
	t.Setenv("COSIGN_PASSWORD", "secret")
	noError(t, write(newTree(t), binaries, signed, "-key", private))
	noError(t, write(newTree(t), binaries, unsigned))
	if a, b := read(t, signed, sumsFile), read(t, unsigned, sumsFile); a != b {
		t.Errorf("two releases of the same commit differ:\n%s\n%s", a, b)
	}
	var stdout bytes.Buffer
	noError(t, run([]string{"check", "-key", public, signed}, &stdout))
	t.Log("\n" + stdout.String())
	if n := strings.Count(stdout.String(), "signed by this key"); n != 5 {
		t.Errorf("%d signatures were verified, want those of the sums, the chart and three images", n)
	}
	stdout.Reset()
	noError(t, run([]string{"check", unsigned}, &stdout))
	if !strings.Contains(stdout.String(), "NOT VERIFIED") {
		t.Error("check without a key does not say that it verified no signature")
	}
	if err := write(newTree(t), binaries, signed); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("build into a release: %v", err)
	}

	another := filepath.Join(t.TempDir(), "another")
	noError(t, write(newTree(t), binaries, another, "-revision", "fedcba9876543210"))
	noError(t, os.RemoveAll(filepath.Join(another, "oci/kubernetes1.36")))
	noError(t, os.CopyFS(filepath.Join(another, "oci/kubernetes1.36"), os.DirFS(filepath.Join(unsigned, "oci/kubernetes1.36"))))
	new(task).writeSums(another, nil)
	if err := run([]string{"check", another}, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "and the chart has sha256:") {
		t.Errorf("the image of another commit: %v", err)
	}

	for _, tc := range []struct {
		name, change, old, new string
		key, want              string
	}{
		{name: "another key", key: anotherKey, want: "SHA256SUMS.sig is not a signature by this key"},
		{name: "no signature", change: "SHA256SUMS.sig", key: public, want: "no such file"},
		{name: "no signature of an image", change: "oci/kubernetes1.36.sig/index.json", key: public, want: "no such file"},
		{name: "signature of another image", change: "oci/kubernetes1.36.sig/index.json", old: ":sha256-", new: ":sha256-0", key: public, want: "is tagged"},
		{name: "added file", change: "more", new: "x", want: "SHA256SUMS and the files differ"},
		{name: "no chart", change: "pool-priority-scheduler-1.2.3.tgz", want: "there are 0 charts"},
		{name: "no image", change: "oci/kubernetes1.36/index.json", want: "no such file"},
		{name: "another tag", change: "oci/kubernetes1.36/index.json", old: "v1.2.3-", new: "v1.2.4-", want: "is tagged"},
		{name: "another size", change: "oci/kubernetes1.36/index.json", old: `"size": `, new: `"size": 1`, want: "has another size or digest"},
		{name: "no manifest", change: "pool-priority-karpenter-kubernetes1.36.yaml", want: "no such file"},
		{name: "another image", change: "pool-priority-aks-kubernetes1.35.yaml", old: "image: registry", new: "image: mirror", want: "has the image mirror"},
		{name: "another sum", change: "pools.yaml", old: "sha256: ", new: "sha256: 0", want: "pools.yaml has another sum"},
		{name: "missing module", change: "kubectl-pools.spdx.json", old: `"name": "github.com/google/go-containerregistry"`, new: `"name": "x"`,
			want: "does not list github.com/google/go-containerregistry v0"},
		{name: "another binary", change: "pool-priority-scheduler-kubernetes1.35.spdx.json", old: `"checksumValue": "`, new: `"checksumValue": "0`,
			want: "does not list linux/amd64/pool-priority-controller"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			noError(t, os.CopyFS(dir, os.DirFS(signed)))
			file := filepath.Join(dir, tc.change)
			switch {
			case tc.change == "":
			case tc.old != "":
				text := read(t, dir, tc.change)
				if !strings.Contains(text, tc.old) {
					t.Fatalf("%s has no %s:\n%s", tc.change, tc.old, text)
				}
				noError(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, tc.old, tc.new)), 0o644))
			case tc.new != "":
				noError(t, os.WriteFile(file, []byte(tc.new), 0o644))
			default:
				noError(t, os.Remove(file))
			}
			if tc.key == "" && tc.change != "more" { // as if the release had been made so
				new(task).writeSums(dir, nil)
			}
			err := run([]string{"check", "-key", tc.key, dir}, new(bytes.Buffer))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// TestChart: the values of the released chart differ from the tree's in one line only. The digests are in a file, which
// helm upgrade --reuse-values does not keep.
func TestChart(t *testing.T) {
	tree, out := newTree(t), t.TempDir()
	r := release{version: "v1.2.3", registry: "registry.example.com/team", tree: tree, out: out}
	r.chart(map[string]string{"1.37": "sha256:c", "1.36": "sha256:b", "1.35": "sha256:a"})
	files := r.untarGzip([]byte(read(t, out, "pool-priority-scheduler-1.2.3.tgz")))
	values := files[program+"/values.yaml"].data
	before := read(t, tree, "charts", program, "values.yaml")
	var changed []string
	old := strings.Split(before, "\n")
	for i, line := range strings.Split(string(values), "\n") {
		if line != old[i] {
			changed = append(changed, strings.TrimSpace(strings.Split(line, "#")[0]))
		}
	}
	if released := string(files[program+"/files/released"].data); released != "1.35 sha256:a\n1.36 sha256:b\n1.37 sha256:c\n" {
		t.Errorf("files/released is %q", released)
	}
	want := []string{"repository: registry.example.com/team/pool-priority-scheduler"}
	if strings.Join(changed, "\n") != strings.Join(want, "\n") {
		t.Errorf("changed lines %q, want %q", changed, want)
	}
	noError(t, os.WriteFile(filepath.Join(tree, "charts", program, "values.yaml"), []byte(before+before), 0o644))
	r.chart(map[string]string{"1.37": "sha256:c", "1.36": "sha256:b", "1.35": "sha256:a"})
	if r.err == nil || !strings.Contains(r.err.Error(), "has 2 lines") {
		t.Errorf("a chart with two of the lines: %v", r.err)
	}
}

// TestManifest: a manifest has the objects of the overlay, and the namespace first.
func TestManifest(t *testing.T) {
	r := release{registry: "registry.example.com/team", tree: root, out: t.TempDir()}
	r.manifests("1.35", "sha256:a")
	text := read(t, r.out, "pool-priority-aks-kubernetes1.35.yaml")
	kinds := map[string]int{}
	for _, document := range strings.Split(text, "\n---\n") {
		var object struct{ Kind string }
		noError(t, yaml.Unmarshal([]byte(document), &object))
		kinds[object.Kind]++
	}
	if !strings.HasPrefix(text, "apiVersion: v1\nkind: Namespace\n") || kinds["Deployment"] != 2 || kinds["ConfigMap"] != 0 {
		t.Errorf("the kinds are %v", kinds)
	}
}

func TestKey(t *testing.T) {
	private, public := newKey(t, "ENCRYPTED COSIGN PRIVATE KEY")
	var of task
	signature, verify := of.sign(of.readPrivateKey(private, "secret"), []byte("text")), of.readPublicKey(public)
	noError(t, of.err)
	if !isSigned(verify, []byte("text"), signature) || isSigned(verify, []byte("texts"), signature) {
		t.Error("the public key does not tell what was signed")
	}
	for _, tc := range []struct{ key, password, want string }{
		{private, "wrong", "COSIGN_PASSWORD does not decrypt"},
		{public, "secret", "has no private key of cosign"},
		{"missing.key", "", "no such file"},
	} {
		t.Setenv("COSIGN_PASSWORD", tc.password)
		if err := write(root, "", filepath.Join(t.TempDir(), "out"), "-key", tc.key); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.key, err, tc.want)
		}
	}
}

// TestSettings: hack/release.sh names the variable that is missing, before it builds anything.
func TestSettings(t *testing.T) {
	settings := []string{"VERSION=v1.2.3", "REGISTRY=registry.example.com/team", "DOWNLOADS=https://downloads.example.com", "OUT=bin/release"}
	for i, wrong := range []string{"VERSION=1.2.3", "REGISTRY=", "DOWNLOADS=ftp://x", "OUT="} {
		command := exec.Command(root + "/hack/release.sh")
		command.Env = append(append(os.Environ(), settings...), wrong)
		output, err := command.CombinedOutput()
		if want := "make release: set " + strings.Split(settings[i], "=")[0]; err == nil || !strings.HasPrefix(string(output), want) {
			t.Errorf("%s: %v, %s, want %s", wrong, err, output, want)
		}
	}
}
