// Package version provides the version of this source tree, and what the build stamped into the
// binary.
package version

import (
	_ "embed"
	"runtime"
	"strings"
)

// The file is the only place of the version: `make set-version` changes it and what is made of it.
//
//go:embed VERSION
var release string

// Set with -ldflags -X by the Makefile; empty in `go test` and `go run`.
var (
	commit string
	date   string // of the commit
)

// Release returns the semantic version of this source tree, which is the tag of its images: "v1.2.3".
func Release() string { return strings.TrimSpace(release) }

// Info describes a binary, as `version -o json` prints it.
type Info struct {
	Program  string `json:"program"`
	Version  string `json:"version"`          // "v1.2.3"
	Commit   string `json:"commit,omitempty"` // abbreviated; ends in "-dirty" if the tree had changes
	Date     string `json:"date,omitempty"`   // of the commit, "2026-11-26"
	Go       string `json:"go"`               // "go1.26.0"
	Platform string `json:"platform"`         // "linux/amd64"
}

// Get returns the description of this binary, a program of the given name.
func Get(program string) Info {
	return Info{Program: program, Version: Release(), Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

// String returns "v1.2.3 (abc1234)", or "v1.2.3" without a stamp.
func String() string {
	if commit == "" {
		return Release()
	}
	return Release() + " (" + commit + ")"
}

// Line returns the description in one line:
// "gpu-toolkit v1.2.3 (commit abc1234 of 2026-11-26, go1.26.0, linux/amd64)".
func (i Info) Line() string {
	build := i.Go + ", " + i.Platform
	switch {
	case i.Commit != "" && i.Date != "":
		build = "commit " + i.Commit + " of " + i.Date + ", " + build
	case i.Commit != "":
		build = "commit " + i.Commit + ", " + build
	}
	return i.Program + " " + i.Version + " (" + build + ")"
}
