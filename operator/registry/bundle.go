package registry

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bundle is a ConfigMap of certificate authorities in PEM form, which are trusted besides the
// system's and those of the Options.
type Bundle struct {
	Name    string // for messages; "" if there is none
	Version string // changes with Files
	Files   map[string][]byte
}

func (b Bundle) equal(o Bundle) bool {
	return b.Name == o.Name && b.Version == o.Version && maps.EqualFunc(b.Files, o.Files, bytes.Equal)
}

// addTo adds the certificates to roots. flaw describes invalid ones by key. The others count
// nevertheless, as Go may not accept one of a hundred.
func (b Bundle) addTo(roots *x509.CertPool) (flaw string) {
	if b.Name == "" {
		return ""
	}
	var flaws []string
	for _, key := range slices.Sorted(maps.Keys(b.Files)) {
		certificates, err := parseCertificates(b.Files[key])
		for _, c := range certificates {
			roots.AddCert(c)
		}
		if err != nil {
			flaws = append(flaws, fmt.Sprintf("key %s: %v", key, err))
		}
	}
	if len(b.Files) == 0 {
		flaws = append(flaws, "it has no keys")
	}
	if len(flaws) == 0 {
		return ""
	}
	return fmt.Sprintf("ConfigMap %s: %s; registries are asked without it: correct it", b.Name, strings.Join(flaws, ", "))
}

// parseCertificates returns the certificates of a file, and an error for invalid ones. Text
// between them is a comment.
func parseCertificates(file []byte) (certificates []*x509.Certificate, err error) {
	const begin = "-----BEGIN CERTIFICATE-----"
	want, have := bytes.Count(file, []byte(begin)), 0
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		have++
		certificate, bad := x509.ParseCertificate(block.Bytes)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("certificate %d: %w", have, bad))
			continue
		}
		certificates = append(certificates, certificate)
	}
	switch {
	case err != nil:
		return certificates, err
	case want == 0:
		return nil, errors.New("no certificate in PEM form")
	case have < want:
		return certificates, fmt.Errorf("%d of %d certificates are not PEM from beginning to end", want-have, want)
	}
	return certificates, nil
}
