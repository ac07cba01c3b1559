package kernel

import (
	"bytes"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
)

// Signature identifies the signer of a module. It is not verified: the kernel does that.
type Signature struct {
	Signer string // the certificate's issuer in the format of the kernel's keyrings; "" if KeyID is set
	Serial string // the certificate's serial number, in hexadecimal
	KeyID  string // the certificate's subject key ID, in hexadecimal; "" if Signer and Serial are set
}

// String names the signer for people.
func (s *Signature) String() string {
	switch {
	case s == nil:
		return "nobody"
	case s.KeyID != "":
		return "key " + s.KeyID
	}
	return fmt.Sprintf("%q, serial number %s", s.Signer, s.Serial)
}

// The end of a signed module (include/linux/module_signature.h): the signature, a struct
// module_signature of 12 bytes, whose last four are the signature's length in big endian
// and whose third is its kind, and the magic string.
const (
	signatureMagic  = "~Module signature appended~\n"
	signatureHeader = 12
	signaturePKCS7  = 2
	maxSignature    = 64 << 10
)

// errSignature is returned for a signature that cannot be read.
var errSignature = errors.New("its signature cannot be read")

// readSignature returns the signature at the end of a module, nil if there is none.
func readSignature(r io.ReaderAt, size int64) (*Signature, error) {
	end := make([]byte, signatureHeader+len(signatureMagic))
	at := size - int64(len(end))
	if at < 0 {
		return nil, nil
	}
	if _, err := r.ReadAt(end, at); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if string(end[signatureHeader:]) != signatureMagic {
		return nil, nil
	}
	length := int64(binary.BigEndian.Uint32(end[8:]))
	if end[2] != signaturePKCS7 || length > maxSignature || length > at {
		return nil, fmt.Errorf("%w: kind %d, %d bytes", errSignature, end[2], length)
	}
	message := make([]byte, length)
	if _, err := r.ReadAt(message, at-length); err != nil {
		return nil, err
	}
	s, err := parsePKCS7(message)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSignature, err)
	}
	return s, nil
}

// contentInfo is the outer structure of a PKCS #7 message (RFC 5652, section 3).
type contentInfo struct {
	Type    asn1.ObjectIdentifier
	Content asn1.RawValue `asn1:"explicit,tag:0"`
}

// signedData is RFC 5652, section 5.1.
type signedData struct {
	Version      int
	Digests      asn1.RawValue
	Content      asn1.RawValue
	Certificates asn1.RawValue   `asn1:"optional,tag:0"`
	CRLs         asn1.RawValue   `asn1:"optional,tag:1"`
	Signers      []asn1.RawValue `asn1:"set"`
}

type issuerAndSerial struct {
	Issuer asn1.RawValue
	Serial *big.Int
}

// parsePKCS7 returns the first signer of a message.
func parsePKCS7(message []byte) (*Signature, error) {
	var outer contentInfo
	if _, err := asn1.Unmarshal(message, &outer); err != nil {
		return nil, err
	}
	var data signedData
	if _, err := asn1.Unmarshal(outer.Content.Bytes, &data); err != nil {
		return nil, err
	}
	if len(data.Signers) == 0 {
		return nil, errors.New("nobody has signed it")
	}
	var version int
	rest, err := asn1.Unmarshal(data.Signers[0].Bytes, &version)
	if err != nil {
		return nil, err
	}
	// SignerIdentifier, section 5.3: issuer and serial number, or [0] the key ID.
	var id asn1.RawValue
	if _, err := asn1.Unmarshal(rest, &id); err != nil {
		return nil, err
	}
	if id.Class == asn1.ClassContextSpecific && id.Tag == 0 {
		return &Signature{KeyID: hex.EncodeToString(id.Bytes)}, nil
	}
	var by issuerAndSerial
	if _, err := asn1.Unmarshal(id.FullBytes, &by); err != nil {
		return nil, err
	}
	var name pkix.RDNSequence
	if _, err := asn1.Unmarshal(by.Issuer.FullBytes, &name); err != nil {
		return nil, err
	}
	if by.Serial == nil || by.Serial.BitLen() > 20*8 { // RFC 5280, 4.1.2.2
		return nil, errors.New("its signer has no serial number")
	}
	return &Signature{Signer: keyName(name), Serial: hex.EncodeToString(by.Serial.Bytes())}, nil
}

// keyName joins the parts of a name to the kernel's name of a key
// (crypto/asymmetric_keys/x509_cert_parser.c, x509_fabricate_name): the organisation and
// the common name, or only the common name if it repeats the organisation, or else the e-mail
// address.
func keyName(sequence pkix.RDNSequence) string {
	var n pkix.Name
	n.FillFromRDNSequence(&sequence)
	email := ""
	for _, a := range n.Names {
		if s, ok := a.Value.(string); ok && a.Type.Equal(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}) {
			email = s
		}
	}
	organisation := ""
	if len(n.Organization) > 0 {
		organisation = n.Organization[len(n.Organization)-1]
	}
	switch {
	case n.CommonName == "" && organisation == "":
		return email
	case n.CommonName == "":
		return organisation
	case organisation == "" || samePrefix(n.CommonName, organisation):
		return n.CommonName
	}
	return organisation + ": " + n.CommonName
}

// samePrefix reports whether the kernel omits the organisation because the common name repeats it:
// the name begins with the organisation, or both begin with the same seven bytes.
func samePrefix(name, organisation string) bool {
	return strings.HasPrefix(name, organisation) ||
		len(name) >= 7 && len(organisation) >= 7 && bytes.Equal([]byte(name[:7]), []byte(organisation[:7]))
}
