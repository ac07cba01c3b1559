// Package sign signs kernel modules, as scripts/sign-file of Linux does.
package sign

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // of the hashes that Sign takes
	_ "crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/build/output"
)

// Limits on files that are read.
const (
	maxKey    = 64 << 10
	maxModule = 512 << 20
)

// Key is a private key with its certificate. The kernel accepts its signatures only if it trusts
// the certificate: enrol it (mokutil --import), or build it into the kernel.
type Key struct {
	Private     *rsa.PrivateKey
	Certificate *x509.Certificate
}

// LoadKey reads a private key, PEM without a passphrase, and its certificate, PEM or DER.
func LoadKey(keyFile, certificateFile string) (Key, error) {
	key, err := loadPrivate(keyFile)
	if err != nil {
		return Key{}, output.BuildError("key that signs modules: "+keyFile, err)
	}
	certificate, err := loadCertificate(certificateFile)
	if err == nil && !key.PublicKey.Equal(certificate.PublicKey) {
		err = fmt.Errorf("it is not the certificate of the key in %s", keyFile)
	}
	if err != nil {
		return Key{}, output.BuildError("certificate of the key that signs modules: "+certificateFile, err)
	}
	return Key{key, certificate}, nil
}

func loadPrivate(path string) (*rsa.PrivateKey, error) {
	text, err := readKeyFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	switch {
	case block == nil:
		return nil, errors.New("it is not a PEM file")
	case block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "":
		return nil, errors.New("it has a passphrase; remove it (openssl pkey) and keep the file secret")
	case block.Type == "RSA PRIVATE KEY":
		return x509.ParsePKCS1PrivateKey(block.Bytes)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	private, ok := key.(*rsa.PrivateKey)
	if !ok {
		return nil, errors.New("it is not an RSA key, the only kind that all kernels support")
	}
	return private, nil
}

func loadCertificate(path string) (*x509.Certificate, error) {
	data, err := readKeyFile(path)
	if err != nil {
		return nil, err
	}
	if block, _ := pem.Decode(data); block != nil {
		data = block.Bytes
	}
	return x509.ParseCertificate(data)
}

func readKeyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	data, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err == nil && len(data) > maxKey {
		err = fmt.Errorf("it has more than %d bytes", maxKey)
	}
	return data, err
}

// Sign signs the module in a file and replaces an old signature. hash is crypto.SHA256, SHA384
// or SHA512, and the kernel has to support it: all kernels support SHA256. After an error the
// file is unchanged.
func (k Key) Sign(path string, hash crypto.Hash) error {
	if err := k.signFile(path, hash); err != nil {
		return output.BuildError("sign "+path, err)
	}
	return nil
}

// SignAll signs the modules in a folder, "*.ko".
func (k Key) SignAll(dir string) error {
	modules, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	for _, m := range modules {
		err = errors.Join(err, k.Sign(m, crypto.SHA256))
	}
	return err
}

func (k Key) signFile(path string, hash crypto.Hash) error {
	module, mode, err := readModule(path)
	if err != nil {
		return err
	}
	end, err := k.signatureAndTrailer(module, hash)
	if err != nil {
		return err
	}
	return replaceFile(path, append(module, end...), mode)
}

// Signature returns the bytes that Sign appends to the module in a file. They are also valid
// for a copy of the module elsewhere.
func (k Key) Signature(path string, hash crypto.Hash) (signature []byte, err error) {
	module, _, err := readModule(path)
	if err == nil {
		signature, err = k.signatureAndTrailer(module, hash)
	}
	if err != nil {
		return nil, output.BuildError("sign "+path, err)
	}
	return signature, nil
}

// readModule returns a module without its signature.
func readModule(path string) ([]byte, fs.FileMode, error) {
	module, mode, err := readWhole(path)
	if err == nil {
		module, _, err = splitSignature(module)
	}
	return module, mode, err
}

func readWhole(path string) ([]byte, fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if info.Size() > maxModule {
		return nil, 0, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxModule)
	}
	module, err := os.ReadFile(path)
	return module, info.Mode().Perm(), err
}

// replaceFile replaces the content of a file atomically.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Chmod(mode), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(temp.Name()))
	}
	return err
}

// The end of a signed module (include/linux/module_signature.h): a PKCS #7 message, a struct
// module_signature with the message's type and length, and the magic string.
const (
	magic       = "~Module signature appended~\n"
	trailerSize = 12
	idPKCS7     = 2
)

// signatureAndTrailer returns what is appended to a module: the PKCS #7 message, the trailer and the
// magic string.
func (k Key) signatureAndTrailer(module []byte, hash crypto.Hash) ([]byte, error) {
	message, err := k.signatureMessage(module, hash)
	if err != nil {
		return nil, err
	}
	end := append(bytes.Clone(message), 0, 0, idPKCS7, 0, 0, 0, 0, 0) // algorithm, hash, type, two lengths, padding
	end = binary.BigEndian.AppendUint32(end, uint32(len(message)))
	return append(end, magic...), nil
}

// splitSignature returns a module and its PKCS #7 message, nil if the module is not signed.
func splitSignature(signed []byte) (module, message []byte, err error) {
	rest, isSigned := bytes.CutSuffix(signed, []byte(magic))
	if !isSigned {
		return signed, nil, nil
	}
	at := len(rest) - trailerSize
	if at < 0 {
		return nil, nil, errors.New("its signature cannot be read")
	}
	length := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	if length > int64(at) {
		return nil, nil, errors.New("its signature cannot be read")
	}
	at -= int(length)
	return rest[:at:at], rest[at : at+int(length)], nil
}

// Object identifiers of RFC 5652, RFC 8017 and NIST.
var (
	oidData       = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	oidSignedData = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	oidRSA        = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
	oidHash       = map[crypto.Hash]asn1.ObjectIdentifier{
		crypto.SHA256: {2, 16, 840, 1, 101, 3, 4, 2, 1},
		crypto.SHA384: {2, 16, 840, 1, 101, 3, 4, 2, 2},
		crypto.SHA512: {2, 16, 840, 1, 101, 3, 4, 2, 3},
	}
)

type contentInfo struct {
	Type    asn1.ObjectIdentifier
	Content signedData `asn1:"explicit,tag:0"`
}

// signedData is RFC 5652, section 5.1, with only the type of the content, and without certificates and
// revocation lists.
type signedData struct {
	Version int
	Hashes  []pkix.AlgorithmIdentifier `asn1:"set"`
	Content struct{ Type asn1.ObjectIdentifier }
	Signers []signerInfo `asn1:"set"`
}

// signerInfo is RFC 5652, section 5.3, without attributes: the signature is of the module's own
// digest.
type signerInfo struct {
	Version   int
	Signer    issuerAndSerial
	Hash      pkix.AlgorithmIdentifier
	Algorithm pkix.AlgorithmIdentifier
	Signature []byte
}

type issuerAndSerial struct {
	Issuer asn1.RawValue
	Serial *big.Int
}

// signatureMessage returns the PKCS #7 message that signs a module.
func (k Key) signatureMessage(module []byte, hash crypto.Hash) ([]byte, error) {
	oid, known := oidHash[hash]
	if !known {
		return nil, fmt.Errorf("hash %v is not SHA-256, SHA-384 or SHA-512", hash)
	}
	h := hash.New()
	h.Write(module)
	signature, err := rsa.SignPKCS1v15(rand.Reader, k.Private, hash, h.Sum(nil))
	if err != nil {
		return nil, err
	}
	algorithm := pkix.AlgorithmIdentifier{Algorithm: oid}
	data := signedData{
		Version: 1,
		Hashes:  []pkix.AlgorithmIdentifier{algorithm},
		Signers: []signerInfo{{
			Version:   1,
			Signer:    issuerAndSerial{asn1.RawValue{FullBytes: k.Certificate.RawIssuer}, k.Certificate.SerialNumber},
			Hash:      algorithm,
			Algorithm: pkix.AlgorithmIdentifier{Algorithm: oidRSA, Parameters: asn1.NullRawValue},
			Signature: signature,
		}},
	}
	data.Content.Type = oidData
	return asn1.Marshal(contentInfo{oidSignedData, data})
}
