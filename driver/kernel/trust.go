package kernel

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Trust describes whose modules the kernel loads.
type Trust struct {
	Enforced   bool   // only signed modules are loaded (module.sig_enforce, or by the kernel's configuration)
	Lockdown   string // "none", "integrity", "confidentiality"; "": unknown
	SecureBoot bool
	Keys       []Key // with which the kernel may verify modules; nil if they cannot be read
}

// Key is a certificate in one of the kernel's keyrings.
type Key struct {
	Name string // "Debian Secure Boot CA"
	ID   string // end of its subject key ID, in hexadecimal
}

// secureBoot is the firmware's variable SecureBoot: four bytes of attributes and one that is 1
// if Secure Boot is on (UEFI specification, section 3.3).
const secureBoot = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

const maxKeys = 4 << 20

// ReadTrust reads the running kernel's requirements for modules. Unreadable parts stay empty: the
// kernel itself decides in any case.
func (s System) ReadTrust() Trust {
	var t Trust
	if data, err := os.ReadFile(filepath.Join(s.Sys, "module/module/parameters/sig_enforce")); err == nil {
		t.Enforced = strings.HasPrefix(string(data), "Y")
	}
	if data, err := os.ReadFile(filepath.Join(s.Sys, "kernel/security/lockdown")); err == nil {
		t.Lockdown = parseLockdown(string(data))
	}
	if data, err := os.ReadFile(filepath.Join(s.Sys, secureBoot)); err == nil {
		t.SecureBoot = len(data) == 5 && data[4] == 1
	}
	if f, err := os.Open(filepath.Join(s.Proc, "keys")); err == nil {
		if data, err := readAtMost(f, maxKeys); err == nil {
			t.Keys = parseKeys(data)
		}
		_ = f.Close()
	}
	return t
}

// parseLockdown returns the level in brackets of "none [integrity] confidentiality".
func parseLockdown(text string) string {
	_, after, _ := strings.Cut(text, "[")
	level, _, closed := strings.Cut(after, "]")
	if !closed {
		return ""
	}
	return level
}

// parseKeys parses the asymmetric keys of /proc/keys (keyrings(7)): the eighth field is
// the type, cut to 9 characters, and the rest "<name>: <key ID>: X509.rsa <end of the key
// ID> []".
func parseKeys(data []byte) []Key {
	var keys []Key
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 9 || !strings.HasPrefix("asymmetric", fields[7]) {
			continue
		}
		_, description, found := strings.Cut(lines.Text(), fields[7]+" ")
		if !found {
			continue
		}
		before, _, _ := strings.Cut(description, ": X509.")
		if i := strings.LastIndex(before, ": "); i > 0 {
			k := Key{Name: strings.TrimSpace(before[:i]), ID: before[i+2:]}
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// requiresSignature reports whether only signed modules are loaded.
func (t Trust) requiresSignature() bool {
	return t.Enforced || t.Lockdown == "integrity" || t.Lockdown == "confidentiality"
}

// hasKeyFor reports whether a key in the keyrings matches a signature.
func (t Trust) hasKeyFor(s *Signature) bool {
	return slices.ContainsFunc(t.Keys, func(k Key) bool {
		if s.KeyID != "" {
			return k.ID != "" && strings.HasSuffix(s.KeyID, k.ID)
		}
		return k.Name == s.Signer
	})
}

// Check rejects a module that the kernel is certain to reject: one without a signature if only
// signed ones are loaded. It leaves an unknown signer to the kernel, since not every process
// sees all keyrings.
func (t Trust) Check(m Module) error {
	if m.Signature != nil || !t.requiresSignature() {
		return nil
	}
	reason := ReasonSignatureRejected
	if !t.Enforced {
		reason = ReasonLockedDown
	}
	return newError(reason, m.Name, nil, "%s: %s", m, t.explainRejection(nil))
}

// MayRejectReason returns why the kernel may reject a signed module that Check accepts, or "" if no
// reason is known.
func (t Trust) MayRejectReason(m Module) string {
	if m.Signature == nil || !t.requiresSignature() || t.Keys == nil || t.hasKeyFor(m.Signature) {
		return ""
	}
	return fmt.Sprintf("%s: %s", m, t.explainRejection(m.Signature))
}

// signatureReason returns why the kernel requires signatures.
func (t Trust) signatureReason() string {
	switch {
	case t.SecureBoot:
		return "Secure Boot is on"
	case t.Enforced:
		return "module.sig_enforce is on"
	case t.requiresSignature():
		return "the kernel is locked down (" + t.Lockdown + ")"
	}
	return "it wants signed modules"
}

// explainRejection describes why a module with this signature is rejected, and what would
// be accepted.
func (t Trust) explainRejection(s *Signature) string {
	const enrol = "enrol the signer's certificate (mokutil --import CERT.der, then restart the node), or sign with a key that the kernel trusts"
	if s == nil {
		return fmt.Sprintf("the kernel loads signed modules alone (%s) and it is not signed; sign it with a key that the kernel trusts%s", t.signatureReason(), t.listKeys())
	}
	return fmt.Sprintf("it is signed by %s, and the kernel (%s) trusts no such key; %s%s", s, t.signatureReason(), enrol, t.listKeys())
}

// explainLockdown describes why loading was not permitted at all.
func (t Trust) explainLockdown(s *Signature) string {
	switch {
	case t.requiresSignature():
		return t.explainRejection(s)
	case t.Lockdown == "":
		return "loading is not permitted: either the kernel is locked down and the module's signature is not by a key that it trusts, or this container has no CAP_SYS_MODULE (run it privileged)"
	}
	return "loading is not permitted: this container has no CAP_SYS_MODULE; run it privileged"
}

// listKeys names some of the keys that the kernel trusts.
func (t Trust) listKeys() string {
	if len(t.Keys) == 0 {
		return ""
	}
	var names []string
	for _, k := range t.Keys[:min(6, len(t.Keys))] {
		names = append(names, fmt.Sprintf("%q", k.Name))
	}
	text := "; it trusts " + strings.Join(names, ", ")
	if more := len(t.Keys) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
