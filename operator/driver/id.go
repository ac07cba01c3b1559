package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/operator/fleet"
)

const (
	simulatedID = "simulated"
	// maxLabelValue is the maximum length of a label's value.
	maxLabelValue = 63
)

// Serves reports whether the driver DaemonSet of an ID is made for such nodes: for their
// kernel, operating system or RHCOS version. A Node whose label names another DaemonSet cannot
// keep its driver, whatever the policy says. Otherwise it can wait for its turn.
func Serves(id string, pool fleet.Pool) bool {
	return id != "" && slices.Contains([]string{simulatedID, containerID(pool), toolkitID(pool), precompiledID(pool)}, id)
}

func containerID(p fleet.Pool) string { return identifier(p.OS) }

func toolkitID(p fleet.Pool) string { return identifier(p.RHCOS) }

// precompiledID combines kernel and operating system. An architecture suffix of the kernel is
// dropped for amd64, as in "4.18.0-372.51.1.el8.6-rhcos4.12", and otherwise replaced by its Go
// name: kernels of two architectures differ in nothing else, and their images do.
func precompiledID(p fleet.Pool) string {
	if p.Kernel == "" || p.OS == "" {
		return ""
	}
	kernel := strings.NewReplacer(".x86_64", "", ".aarch64", "-arm64").Replace(p.Kernel)
	return identifier(kernel + "-" + p.OS)
}

// identifier converts s to a string that is valid both as the end of an object's name (a
// DNS-1123 subdomain) and as a label's value. Strings that differ only in case, or in "_" and
// ".", become one; those that lose more or are cut end with a hash of the original.
func identifier(s string) string {
	plain := strings.ReplaceAll(strings.ToLower(s), "_", ".")
	clean := subdomain(plain)
	if clean == plain && len(clean) <= maxLabelValue {
		return clean
	}
	sum := sha256.Sum256([]byte(s))
	const hashed = 8
	clean = subdomain(clean[:min(len(clean), maxLabelValue-hashed-1)])
	return strings.TrimPrefix(clean+"-"+hex.EncodeToString(sum[:hashed/2]), "-")
}

// subdomain replaces or drops what a DNS-1123 subdomain must not contain.
func subdomain(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, s)
	var parts []string
	for part := range strings.SplitSeq(s, ".") {
		if part = strings.Trim(part, "-"); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ".")
}
