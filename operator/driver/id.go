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
	base, _, named := strings.Cut(id, separator)
	return id != "" && slices.ContainsFunc([]string{simulatedID, containerID(pool), toolkitID(pool), precompiledID(pool)}, func(one string) bool {
		if named {
			one = bounded(one, maxBase)
		}
		return one == base
	})
}

// IsOf reports whether the driver DaemonSet of an ID installs the driver of the pool's NVIDIADriver
// or, if its nodes have none, of the ClusterPolicy.
func IsOf(id string, pool fleet.Pool) bool {
	_, name, _ := strings.Cut(id, separator)
	return id != "" && name == shortName(pool.Drivers)
}

// An ID has the name of the NVIDIADriver at its end: "ubuntu22.04_gold". The separator occurs in no
// other part of an ID. Both parts are bounded, so that they fit into a label's value.
const (
	separator = "_"
	maxName   = 20
	maxBase   = maxLabelValue - maxName - len(separator)
)

// driverID returns the ID of the driver of an NVIDIADriver, or of the ClusterPolicy's driver for the
// name "".
func driverID(base, name string) string {
	if name == "" {
		return base
	}
	return bounded(base, maxBase) + separator + shortName(name)
}

// shortName returns an NVIDIADriver's name, which is a DNS-1123 subdomain, in the form of an ID.
func shortName(name string) string { return bounded(name, maxName) }

// bounded returns s, cut and with a hash at its end if it is longer than most.
func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return hashed(s, s, most)
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
	return hashed(clean, s, maxLabelValue)
}

// hashed returns the beginning of s and a hash of the original, with at most a number of characters.
func hashed(s, original string, most int) string {
	sum := sha256.Sum256([]byte(original))
	const digits = 8
	s = subdomain(s[:min(len(s), most-digits-1)])
	return strings.TrimPrefix(s+"-"+hex.EncodeToString(sum[:digits/2]), "-")
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
