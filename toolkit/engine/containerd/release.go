package containerd

import (
	"fmt"

	"github.com/gpuready/gpuready/toolkit/engine"
)

// release is what a version of containerd makes of its files. Sources:
// services/server/config/config.go of 1.6.20 and 1.7.24,
// cmd/containerd/server/config/config.go of 2.0.0, 2.2.0, 2.3.5 and 2.4.2.
type release struct{ engine.Release }

func parseRelease(p engine.Place) (release, error) {
	if p.Version == "" {
		return release{}, nil
	}
	read, ok := engine.ParseRelease(p.Version)
	if !ok {
		return release{}, &engine.Refusal{File: p.Config, Message: fmt.Sprintf("containerd says that it is version %q, which is no version; nothing is changed without knowing it", p.Version)}
	}
	r := release{read}
	if !r.AtLeast(1, 6) {
		return release{}, &engine.Refusal{File: p.Config, Message: "containerd " + p.Version + " is older than 1.6; upgrade it"}
	}
	return r, nil
}

func (r release) known() bool { return r.Major > 0 }

// deep: tables of several files are merged key by key. Until 1.7, a file's table of
// a plugin replaces that of the files before it as a whole.
func (r release) deep() bool { return r.AtLeast(2, 0) }

// eachFile: every file is converted from its own version before it is merged. From
// 2.0 to 2.2 the last version that a file names counts for all of them.
func (r release) eachFile() bool { return r.AtLeast(2, 3) }

// keepsRunc: the built-in handler runc stays beside those that a file names. Until
// 1.7 a table of handlers replaces the built-in one.
func (r release) keepsRunc() bool { return r.AtLeast(2, 0) }

func (r release) hasCDI() bool { return r.AtLeast(1, 7) }

// cdiDefault: CDI is on where no file says anything. From 2.4 on it always is.
func (r release) cdiDefault() bool { return r.AtLeast(2, 0) }
func (r release) cdiAlways() bool  { return r.AtLeast(2, 4) }

// newest is the version of the files that are made where there is none.
func (r release) newest() int {
	if r.deep() {
		return 3
	}
	return 2
}

// most is the highest version of a file that is read.
func (r release) most() int {
	switch {
	case r.eachFile():
		return 4
	case r.deep():
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
