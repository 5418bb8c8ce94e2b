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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

const simpleSigning types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"

const signatureAnnotation = "dev.cosignproject.cosign/signature"

// readPrivateKey reads a key that cosign generate-key-pair wrote.
func readPrivateKey(file, password string) *ecdsa.PrivateKey {
	block, _ := pem.Decode(must(os.ReadFile(file)))
	require(block != nil && (block.Type == "ENCRYPTED SIGSTORE PRIVATE KEY" || block.Type == "ENCRYPTED COSIGN PRIVATE KEY"),
		"%s has no private key of cosign", file)
	plain, err := encrypted.Decrypt(block.Bytes, []byte(password))
	require(err == nil, "COSIGN_PASSWORD does not decrypt %s: %v", file, err)
	key, ok := must(x509.ParsePKCS8PrivateKey(plain)).(*ecdsa.PrivateKey)
	require(ok, "%s has no ECDSA key", file)
	return key
}

func readPublicKey(file string) *ecdsa.PublicKey {
	block, _ := pem.Decode(must(os.ReadFile(file)))
	require(block != nil && block.Type == "PUBLIC KEY", "%s has no public key", file)
	key, ok := must(x509.ParsePKIXPublicKey(block.Bytes)).(*ecdsa.PublicKey)
	require(ok, "%s has no ECDSA key", file)
	return key
}

// sign returns a signature in base64. It depends only on the key and the data, because the random source is nil.
func sign(key *ecdsa.PrivateKey, data []byte) string {
	sum := sha256.Sum256(data)
	return base64.StdEncoding.EncodeToString(must(key.Sign(nil, sum[:], crypto.SHA256)))
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
func (r release) signManifest(name, repository string, manifest v1.Hash) {
	if r.key == nil {
		return
	}
	l, data := r.newLayout(name+".sig"), payload(repository, manifest)
	layer := l.add(simpleSigning, data)
	layer.Annotations = map[string]string{signatureAnnotation: sign(r.key, data)}
	config := l.addJSON(types.OCIConfigJSON, v1.ConfigFile{
		Created: v1.Time{Time: r.created}, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.Digest}},
	})
	l.tag(l.addManifest(config, layer, nil), repository, signatureTag(manifest))
}
