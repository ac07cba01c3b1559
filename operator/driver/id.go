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
	// maxLabelValue is that of a label's value.
	maxLabelValue = 63
)

// Serves says whether the driver DaemonSet of that ID is made for nodes like these: for
// their kernel, their operating system or their version of RHCOS. A Node whose label
// names another cannot go on with what it has, whatever the policy says; one whose label
// names a DaemonSet that serves it can wait for its turn.
func Serves(id string, pool fleet.Pool) bool {
	return id != "" && slices.Contains([]string{simulatedID, containerID(pool), toolkitID(pool), precompiledID(pool)}, id)
}

func containerID(p fleet.Pool) string { return identifier(p.OS) }

func toolkitID(p fleet.Pool) string { return identifier(p.RHCOS) }

// precompiledID is kernel and operating system. The architecture at a kernel's end is
// left out where it is amd64, as in "4.18.0-372.51.1.el8.6-rhcos4.12", and else brought
// back by its other name: kernels of two architectures differ in nothing else, and their
// images do.
func precompiledID(p fleet.Pool) string {
	if p.Kernel == "" || p.OS == "" {
		return ""
	}
	kernel := strings.NewReplacer(".x86_64", "", ".aarch64", "-arm64").Replace(p.Kernel)
	return identifier(kernel + "-" + p.OS)
}

// identifier makes of s what can be both the end of an object's name (a DNS-1123 subdomain) and
// a label's value. Two that differ only in case, or in "_" and ".", become one; those that lose more,
// or are cut, end with a hash of what they were.
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

// subdomain drops what a DNS-1123 subdomain cannot have.
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
