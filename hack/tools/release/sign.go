package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

const simpleSigning types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"

const signatureAnnotation = "dev.cosignproject.cosign/signature"

// readPEM returns the content of a file of one of the types.
func (t *task) readPEM(file, what string, types ...string) []byte {
	block, _ := pem.Decode(get(os.ReadFile(file))(t))
	if !t.require(block != nil && slices.Contains(types, block.Type), "%s has no %s", file, what) {
		return nil
	}
	return block.Bytes
}

// readPrivateKey reads a key that cosign generate-key-pair wrote.
func (t *task) readPrivateKey(file, password string) *ecdsa.PrivateKey {
	sealed := t.readPEM(file, "private key of cosign", "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY")
	plain, err := encrypted.Decrypt(sealed, []byte(password))
	t.require(err == nil, "COSIGN_PASSWORD does not decrypt %s: %v", file, err)
	key, ok := get(x509.ParsePKCS8PrivateKey(plain))(t).(*ecdsa.PrivateKey)
	t.require(ok, "%s has no ECDSA key", file)
	return key
}

func (t *task) readPublicKey(file string) *ecdsa.PublicKey {
	key, ok := get(x509.ParsePKIXPublicKey(t.readPEM(file, "public key", "PUBLIC KEY")))(t).(*ecdsa.PublicKey)
	t.require(ok, "%s has no ECDSA key", file)
	return key
}

// sign returns a signature in base64. It depends only on the key and the data, because the random source is nil.
func (t *task) sign(key *ecdsa.PrivateKey, data []byte) string {
	sum := sha256.Sum256(data)
	return base64.StdEncoding.EncodeToString(get(key.Sign(nil, sum[:], crypto.SHA256))(t))
}

func isSigned(key *ecdsa.PublicKey, data []byte, signature string) bool {
	raw, err := base64.StdEncoding.DecodeString(signature)
	sum := sha256.Sum256(data)
	return err == nil && ecdsa.VerifyASN1(key, sum[:], raw)
}

// payload returns what cosign signs for a manifest, in the format "simple signing".
func payload(repository string, manifest v1.Hash) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"},"optional":null}`, repository, manifest)
}

// signatureTag returns the tag at which cosign looks for the signatures of a manifest.
func signatureTag(manifest v1.Hash) string { return manifest.Algorithm + "-" + manifest.Hex + ".sig" }

// signManifest writes the signature's layout oci/NAME.sig, if there is a key.
func (r *release) signManifest(name, repository string, manifest v1.Hash) {
	if r.key == nil {
		return
	}
	l, data := r.newLayout(name+".sig"), payload(repository, manifest)
	layer := l.add(simpleSigning, data)
	layer.Annotations = map[string]string{signatureAnnotation: r.sign(r.key, data)}
	config := l.addJSON(types.OCIConfigJSON, v1.ConfigFile{
		Created: v1.Time{Time: r.created}, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.Digest}},
	})
	l.tag(l.addManifest(config, layer, nil), repository, signatureTag(manifest))
}
