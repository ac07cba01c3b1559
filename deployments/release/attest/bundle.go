package attest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// BundleType is the media type of the bundles that cosign writes.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// statementPayload is the type of what a bundle's envelope holds.
const statementPayload = "application/vnd.in-toto+json"

// Bundle is a signature with the means to verify it: the signed statement or the digest of the signed
// file, and a hint at the key or a certificate. Only cosign judges it.
type Bundle struct {
	Statement []byte // the signed statement; nil if a file is signed
	Digest    []byte // the SHA-256 of the file that is signed; nil if a statement is
	KeyHint   string // names the key; "" if there is a certificate
}

// ReadBundle decodes a bundle. It does not verify it.
func ReadBundle(data []byte) (Bundle, error) {
	var b struct {
		MediaType            string `json:"mediaType"`
		VerificationMaterial struct {
			PublicKey struct {
				Hint string `json:"hint"`
			} `json:"publicKey"`
		} `json:"verificationMaterial"`
		MessageSignature struct {
			MessageDigest struct {
				Digest []byte `json:"digest"`
			} `json:"messageDigest"`
		} `json:"messageSignature"`
		DSSEEnvelope envelope `json:"dsseEnvelope"`
	}
	// The fields are cosign's, which may add some.
	if err := json.Unmarshal(data, &b); err != nil {
		return Bundle{}, fmt.Errorf("bundle: %w", err)
	}
	if b.MediaType != BundleType {
		return Bundle{}, fmt.Errorf("bundle: mediaType is %.80q; %q expected", b.MediaType, BundleType)
	}
	read := Bundle{Digest: b.MessageSignature.MessageDigest.Digest, KeyHint: b.VerificationMaterial.PublicKey.Hint}
	if len(read.Digest) == 0 {
		var err error
		if read.Statement, err = b.DSSEEnvelope.statement(); err != nil {
			return Bundle{}, fmt.Errorf("bundle: dsseEnvelope: %w", err)
		}
	}
	return read, nil
}

// envelope is the DSSE envelope of a statement.
type envelope struct {
	PayloadType string `json:"payloadType"`
	Payload     string `json:"payload"` // in base64
}

func (e envelope) statement() ([]byte, error) {
	if e.PayloadType != statementPayload {
		return nil, fmt.Errorf("payloadType is %.80q; %q expected", e.PayloadType, statementPayload)
	}
	return base64.StdEncoding.DecodeString(e.Payload)
}
