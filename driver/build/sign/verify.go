package sign

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"

	"github.com/gpuready/gpuready/driver/build/output"
)

// LoadCertificate reads a certificate, PEM or DER.
func LoadCertificate(path string) (*x509.Certificate, error) {
	c, err := loadCertificate(path)
	if err != nil {
		return nil, output.BuildError("certificate of the key that signs modules: "+path, err)
	}
	return c, nil
}

// Fingerprint returns the SHA-256 of the certificate in a file, in hexadecimal.
func Fingerprint(path string) (string, error) {
	c, err := LoadCertificate(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(c.Raw)), nil
}

// errUnsigned is returned by Verify for a module without signature.
var errUnsigned = errors.New("it is not signed")

// Verify returns an error unless the certificate's key has signed the module in a file, as Sign
// or the kernel's sign-file does: without attributes.
func Verify(path string, by *x509.Certificate) error {
	if err := verifyFile(path, by); err != nil {
		return fmt.Errorf("%s: %w; it must be signed by the key of %q", path, err, by.Subject.String())
	}
	return nil
}

func verifyFile(path string, by *x509.Certificate) error {
	key, ok := by.PublicKey.(*rsa.PublicKey)
	if !ok {
		return errors.New("the certificate has no RSA key")
	}
	signed, _, err := readWhole(path)
	if err != nil {
		return err
	}
	module, message, err := splitSignature(signed)
	if err != nil {
		return err
	}
	if message == nil {
		return errUnsigned
	}
	var outer contentInfo
	if rest, err := asn1.Unmarshal(message, &outer); err != nil || len(rest) > 0 {
		return fmt.Errorf("its signature cannot be read: %w", errors.Join(err, checkNoExtra(rest)))
	}
	if len(outer.Content.Signers) != 1 {
		return fmt.Errorf("it has %d signers, not one", len(outer.Content.Signers))
	}
	s := outer.Content.Signers[0]
	if !bytes.Equal(s.Signer.Issuer.FullBytes, by.RawIssuer) || s.Signer.Serial == nil || s.Signer.Serial.Cmp(by.SerialNumber) != 0 {
		return errors.New("another key has signed it")
	}
	for hash, oid := range oidHash {
		if oid.Equal(s.Hash.Algorithm) {
			h := hash.New()
			h.Write(module)
			return rsa.VerifyPKCS1v15(key, hash, h.Sum(nil), s.Signature)
		}
	}
	return errors.New("the hash of its signature is not SHA-256, SHA-384 or SHA-512")
}

func checkNoExtra(rest []byte) error {
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes too many", len(rest))
	}
	return nil
}
