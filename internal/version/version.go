// Package version holds what the build stamped into the binary.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Set with -ldflags -X by the Makefile; empty in `go test` and `go run`.
var (
	version string
	commit  string
	date    string // of the commit
)

// Info describes a binary, as `version -o json` prints it.
type Info struct {
	Program  string `json:"program"`
	Version  string `json:"version"`          // "v0.1.0", or "devel"
	Commit   string `json:"commit,omitempty"` // abbreviated
	Date     string `json:"date,omitempty"`   // of the commit, "2026-11-26"
	Go       string `json:"go"`               // "go1.26.0"
	Platform string `json:"platform"`         // "linux/amd64"
}

// Get returns the description of this binary, a program of the given name.
func Get(program string) Info {
	i := Info{Program: program, Version: version, Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if i.Version == "" {
		i.Version = "devel"
		if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" && build.Main.Version != "(devel)" {
			i.Version = build.Main.Version
		}
	}
	return i
}

// String returns "v0.1.0 (abc1234)" as stamped, else what the Go tool recorded.
func String() string {
	i := Get("")
	if i.Commit == "" || strings.Contains(i.Version, i.Commit) {
		return i.Version
	}
	return i.Version + " (" + i.Commit + ")"
}

// Line returns the description in one line:
// "gpu-toolkit v0.1.0 (commit abc1234 of 2026-11-26, go1.26.0, linux/amd64)".
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
