package containerd

import "github.com/gpuready/gpuready/toolkit/runtime"

// release gives the rules by which a version of containerd reads its files. Sources:
// services/server/config/config.go of 1.6.20 and 1.7.24,
// cmd/containerd/server/config/config.go of 2.0.0, 2.2.0, 2.3.5 and 2.4.2.
type release struct{ runtime.Release }

func (r release) isKnown() bool { return r.Major > 0 }

// mergesByKey reports whether tables of several files are merged key by key. Until
// 1.7, a file's table of a plugin replaces that of earlier files as a whole.
func (r release) mergesByKey() bool { return r.AtLeast(2, 0) }

// convertsEachFile reports whether every file is converted from its own version before
// it is merged. From 2.0 to 2.2 the last version that a file names applies to all.
func (r release) convertsEachFile() bool { return r.AtLeast(2, 3) }

// keepsRunc reports whether the built-in handler runc stays besides those that a file
// names. Until 1.7 a table of handlers replaces the built-in one.
func (r release) keepsRunc() bool { return r.AtLeast(2, 0) }

func (r release) hasCDI() bool { return r.AtLeast(1, 7) }

// cdiDefault reports whether CDI is on unless a file turns it off.
func (r release) cdiDefault() bool { return r.AtLeast(2, 0) }

// cdiAlways reports whether CDI is on regardless of the files.
func (r release) cdiAlways() bool { return r.AtLeast(2, 4) }

// newVersion returns the version to use for new files.
func (r release) newVersion() int {
	if r.mergesByKey() {
		return 3
	}
	return 2
}

// maxVersion returns the highest version of a file that the release reads.
func (r release) maxVersion() int {
	switch {
	case r.convertsEachFile():
		return 4
	case r.mergesByKey():
		return 3
	}
	return 2
}

// The names of the CRI plugin's table in the versions of configuration files.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"
)

func criTable(version int) string {
	switch {
	case version <= 1:
		return criV1
	case version == 2:
		return criV2
	}
	return criV3
}
